"""Measures the machine at hand: operators and collectives, for planning on its own figures.

* `run`: all measurements
* `shapes`: what is measured
* `device`: devices and versions
* `gemm`: matrix products
* `attention`: fused attention
* `norm`: memory-bound operators
* `collectives`: collectives under torchrun
* `operands`: tensors to measure on
* `timing`: seconds of repeated calls
* `custom`: a device that the catalogue lacks
"""
