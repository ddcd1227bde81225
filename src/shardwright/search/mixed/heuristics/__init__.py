"""Incumbents: plans tried before and beside the proof.

* `attempts`: from solutions of a region's program
* `simple_plans`: replicas of one type each, and equal replicas
* `megatron`: uniform plans over all machines of some types, as Megatron-LM runs them
* `unequal_counts`: replicas of one shape, experts or sequences spread, with unequal numbers of micro-batches
* `unequal_spread`: the same over several types, and of unequal depth
"""
