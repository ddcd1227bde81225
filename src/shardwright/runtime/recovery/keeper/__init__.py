"""The process of a machine. No PyTorch.

* `worker_pool`: the worker processes
* `worker_requests`: what it answers workers and other keepers
* `protection`: copies of a machine's part of a step
* `coordinator_requests`: what it answers the coordinator
* `preemption`: notices that the machine is to be taken away
* `keeper`: the keeper itself
"""
