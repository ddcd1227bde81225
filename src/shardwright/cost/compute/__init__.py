"""What a layer computes, and how much of a GPU's datasheet that reaches.

* `operators`: the operators of a layer
* `operator_table`: operators, and these as columns
* `flops`: model FLOPs, by which MFU is measured
* `selective`: what selective recomputation keeps and repeats
* `efficiency`: the interface behind which efficiency sits, and its analytic form
* `orthogonalisation`: what Muon computes
* `roofline`: the least time of operators
"""
