"""What a layer computes, and how much of a GPU's datasheet that reaches.

* `operators`: the operators of a layer, and what selective recomputation keeps and repeats
* `launches`: the calls by which the host launches a layer
* `tower`: the operators of a vision tower and its projector, and what they keep
* `operator_table`: operators, and these as columns
* `flops`: model FLOPs, by which MFU is measured
* `efficiency`: the interface behind which efficiency sits, its analytic form, and the least time of operators
* `orthogonalisation`: what Muon computes
"""
