"""Plans in the words of the tools that people run: one folder a target.

* `targets`: the library call, and the list of targets
* `exported`: what an exporter gives
* `megatron/`: Megatron-LM, both ways
* `perfetto/`: traces
"""
