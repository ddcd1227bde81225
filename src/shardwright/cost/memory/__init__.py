"""Bytes on one GPU.

* `activations`: both of these for all layers, what recomputation frees of them, and towers
* `kept`: what the parts of a layer keep for its backward pass
* `backward`: what is there beside that while it runs
* `sizes`: weights, gradients, optimizer state
* `ends`: logits with their loss, and what is whole of embedding and head
* `facts`: what frameworks keep beyond the formulas, and how likely a predicted peak fits
"""
