"""What machines there are: GPUs, memory, NVLink and network cards, as this machine, SLURM or Kubernetes tells them.

* `recorded`: files in which their answers are recorded
* `document`: groups of machines as a cluster file
* `discover`: one call that asks whoever answers
* `sources`: this machine by nvidia-smi and /sys, nodes of SLURM by scontrol, nodes of Kubernetes by kubectl
"""
