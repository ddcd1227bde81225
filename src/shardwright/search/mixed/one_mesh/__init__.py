"""Plans over several GPU types that Megatron-LM can be told: one mesh of ranks.

Degrees, layers, micro-batches and recomputation are the same in every replica, and every stage is on machines of one
type; what stages hold is as unequal as it need be. So a plan is a setting, a number of copies and one composition, and
the best of all is found by their bounds, best first.

* `candidates`: compositions with their bounds
* `closer`: what is proven of those whose plans are above their bound
* `worth`: seconds or dollars, whichever count
* `search`: the best of them, as plans
"""
