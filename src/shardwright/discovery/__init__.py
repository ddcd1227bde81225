"""What machines there are: GPUs, memory, NVLink and network cards, as this machine, SLURM or Kubernetes tells them.

* `local`: this machine, by nvidia-smi and /sys
* `slurm`: the nodes of a SLURM cluster, by scontrol
* `kubernetes`: the nodes of a Kubernetes cluster, by kubectl
* `recorded`: files in which their answers are recorded
* `document`: groups of machines as a cluster file
* `discover`: one call that asks whoever answers
"""
