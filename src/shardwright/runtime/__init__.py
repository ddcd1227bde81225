"""Executes a `Plan` on torch.distributed and recovers it when machines are taken away.

Here live process groups, pipeline executors, layer-wise gradient synchronisation, checkpoints, membership and the
choice of sources after a loss. PyTorch is imported here and in `spmd` alone. What does not belong here: the search for
a new plan (`search`), the prediction of its time (`cost`), and configuration files for other frameworks (`export`).
"""
