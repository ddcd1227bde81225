"""Incumbents: plans tried before and beside the proof.

* `attempts`: from solutions of a region's program
* `equal`: equal replicas
* `side_by_side`: replicas of one type each
* `megatron`: uniform plans over all machines of some types, as Megatron-LM runs them
"""
