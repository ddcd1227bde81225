"""Bytes on one GPU.

* `sizes`: weights, gradients, optimizer state, activations, logits, buffers
* `facts`: what frameworks keep beyond the formulas
* `fit_probability`: how likely a predicted peak fits
"""
