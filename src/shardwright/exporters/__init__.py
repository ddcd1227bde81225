"""Plans in the words of the tools that people run: one folder a target.

* `megatron/`: Megatron-LM, both ways
"""
