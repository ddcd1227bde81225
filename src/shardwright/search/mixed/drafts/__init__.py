"""From solutions of the program to plans.

* `draft`: lines of a solution and plans
* `realise`: compositions to replicas
* `splits`: good layer splits
* `split_times`: seconds, recomputation and memory of splits
* `micro_batch_shares`: micro-batches of each replica
* `joint_time`: what unlike replicas take together
* `costing`: what a whole plan takes
"""
