"""Bytes on one GPU.

* `activations`: both of these for all layers, what recomputation frees of them, and towers
* `kept`: what the parts of a layer keep for its backward pass
* `backward`: what is there beside that while it runs
* `sizes`: weights, gradients, optimizer state, logits, buffers
* `scored`: what is at the head beside losses over log-probabilities of answers
* `facts`: what frameworks keep beyond the formulas, and how likely a predicted peak fits
"""
