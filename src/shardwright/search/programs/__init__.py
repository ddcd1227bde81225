"""SPMD programs beside plans: every GPU computes a part of every operator, synthesised for small clusters.

* `devices`: GPUs and links as the cost model sees them, for synthesis
* `candidate`: the fastest program for a job, if there is one
"""
