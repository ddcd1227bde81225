"""One iteration of uneven FSDP, unit by unit: all GPUs take all their micro-batches through a unit before the next one.

A unit is the embedding, a layer or the head. Its weights are gathered once a pass, whatever the micro-batches of each
GPU, and its gradients are scattered once (Cephalo, arXiv 2411.01075 §3).

* `shares`: seconds and bytes of each unit, and what a GPU with given shares takes
* `seconds`: the time of the iteration with gathers, scatters and update, and when each GPU runs each unit
* `plan`: the iteration of a layered plan
"""
