"""Traces PyTorch modules to graphs of operators, and runs SPMD programs on unequal devices.

* `synthesize`: from a task, or a module and a cluster, to a program; machines as the search sees them
* `task`: what a user wants to train, and what trains a graph that ships
* `trace`: from a module, a batch and a loss to a graph; what the user's code raises, with its line
* `replacements`: what a trace calls in place of operators, and of experts, that no shard could compute
* `operators`: operators of our own, as PyTorch knows them
* `kernels`: what they compute
* `joint`: from PyTorch's graph of forward and backward to ours, and the blocks that occur several times
* `normalise`: one form for each operator
* `shards`: where the shard of a rank lies in a tensor, and from one sharding to another
* `fabric`: collectives for unequal parts
* `execute`: a program on one rank, operator by operator on what it holds
* `training`: a training step with an optimizer of the user's own
* `check`: whether a program's step, on ranks that are threads, equals the one that PyTorch runs
* `document`: the file of a synthesised step, and its parameters as DTensors of other trainers
* `run`: training under torchrun
* `checkpoint`: what ranks hold, in files

Which operator is sharded how, and what that costs, is decided in `synthesis`; a `Plan` is run by `runtime`.
"""
