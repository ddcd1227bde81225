"""What a stage keeps and what it repeats, under every recomputation: one account, read in three ways.

* `terms`: the terms of its memory, one row each, and the modes of recomputation
* `ranges`: which layers of which model a stage has, and sums over them
* `exact`: bytes and repeated seconds of stages
* `invert`: the recomputation of least time that fits
* `relaxed`: what no stage of such layers goes below
* `tails`: what gradients and weights leave to do after the pipeline
"""
