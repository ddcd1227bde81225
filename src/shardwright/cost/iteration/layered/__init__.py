"""One iteration of uneven FSDP, unit by unit: all GPUs take all their micro-batches through a unit before the next one.

A unit is the embedding, a layer or the head. Its weights are gathered once a pass, whatever the micro-batches of each
GPU, and its gradients are scattered once (Cephalo, arXiv 2411.01075 §3).

* `units`: seconds and bytes of each unit by the size of the micro-batch
* `shares`: what passes and memory take on a GPU with given shares
* `seconds`: the time of the iteration
* `timeline`: when each GPU runs each unit
* `network`: gathers and scatters among all GPUs
* `update`: the update of every GPU's part of the state
* `plan`: the iteration of a layered plan
"""
