"""Traces PyTorch modules to graphs of operators, and runs SPMD programs on unequal devices.

* `synthesize`: from a task, or a module and a cluster, to a program
* `cluster`: machines as the search sees them
* `task`: what a user wants to train
* `described`: what trains a graph that ships
* `trace`: from a module, a batch and a loss to a graph
* `replacements`: what a trace calls in place of operators that no shard could compute
* `experts`: experts of `transformers`, traced row by row
* `operators`: operators of our own, as PyTorch knows them
* `kernels`: what they compute
* `joint`: from PyTorch's graph of forward and backward to ours
* `repeats`: the blocks that occur several times
* `normalise`: one form for each operator
* `views`: nodes that only show a value otherwise
* `shards`: where the shard of a rank lies in a tensor
* `local`: one operator on what a rank holds
* `convert`: from one sharding to another
* `fabric`: collectives for unequal parts
* `threads`: ranks that are threads
* `execute`: a program on one rank
* `training`: a training step with an optimizer of the user's own
* `eager`: the step that PyTorch runs
* `check`: whether a program's step equals it
* `placements`: parameters as DTensors of other trainers
* `document`: the file of a synthesised step
* `run`: training under torchrun
* `checkpoint`: what ranks hold, in files

Which operator is sharded how, and what that costs, is decided in `synthesis`; a `Plan` is run by `runtime`.
"""
