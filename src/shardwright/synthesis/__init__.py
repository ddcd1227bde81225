"""Synthesises SPMD programs for unequal devices: which operator is sharded how, in which ratios, by which collectives.

Here live the operator graph as data, the rules that say how each operator may be sharded, the cost of a program on a
cluster, the search over programs and the linear program for the ratios. Nothing here knows of PyTorch: tracing a module
into a graph and running a program belong to `spmd`.
"""
