"""What a stage keeps and what it repeats, under every recomputation: one account, read in three ways.

* `terms`: the terms of its memory, one row each, and the modes of recomputation
* `exact`: layers, bytes and repeated seconds of stages, the recomputation that fits, and their tails
* `relaxed`: what no stage of such layers goes below
"""
