"""Synthesises and executes SPMD programs for unequal devices.

Here live the operator graph traced from a PyTorch module, the rules that say how each operator may be sharded, the
search over programs, the linear program for sharding ratios, and the interpreter that runs a program on
torch.distributed. PyTorch is imported here and in `runtime` alone. What does not belong here: formulas for time and
memory (`cost`), the search over pipelines (`search`), and the execution of a `Plan` (`runtime`).
"""
