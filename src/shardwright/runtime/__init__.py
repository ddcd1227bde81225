"""Trains a `Plan` on torch.distributed: gloo on CPUs, NCCL on GPUs.

* `layout/`: every rank's part, derived from the plan
* `model/`: what a stage computes
* `state/`: parameters, gradients, optimizer
* `step/`: one training step
* `storage/`: checkpoints, weights, data
* `timing/`: what was measured
* `job/`: a run from start to end
* `recovery/`: a run that outlives its machines

PyTorch is imported here, in `spmd`, `measure` and `rehearsal` alone. What does not belong here: the search for a plan
(`search`), the prediction of its time (`cost`), and configuration files for other frameworks (`exporters`).
"""
