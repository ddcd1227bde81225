"""Traces PyTorch modules to graphs of operators and runs SPMD programs on unequal devices.

Here live the way from a module to a graph (`trace`) and the way from a program to a training step on every rank
(`execute`). Both need PyTorch. What does not belong here: which operator is sharded how, and what that costs
(`synthesis`), and the execution of a `Plan` (`runtime`).
"""
