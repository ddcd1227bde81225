"""Bytes on one GPU.

* `activations`: what a layer keeps for its backward pass, and what recomputation frees of it
* `sizes`: weights, gradients, optimizer state, logits, buffers
* `facts`: what frameworks keep beyond the formulas, and how likely a predicted peak fits
"""
