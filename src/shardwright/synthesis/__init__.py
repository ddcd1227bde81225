"""Synthesises SPMD programs for unequal devices: which operator is sharded how, in which ratios, by which collectives.

* `graph`: the operators of a training step as data
* `properties`: how a tensor is distributed
* `program`: what ranks run

Nothing here knows of PyTorch: tracing a module into a graph and running a program belong to `spmd`.
"""
