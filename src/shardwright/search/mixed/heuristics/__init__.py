"""Incumbents: plans tried before and beside the proof.

* `attempts`: from solutions of a region's program
* `equal`: equal replicas
* `megatron`: one uniform plan over all machines, as Megatron-LM runs it
"""
