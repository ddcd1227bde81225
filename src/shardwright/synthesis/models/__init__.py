"""Graphs of well-known models, built without tracing: one training step, forward and backward, of given dimensions.

* `recorder`: records operators and then their gradients
* `tape`: operators with their gradients
* `experts`: layers of experts
* `transformers`: BERT, GPT-2, Llama, ViT, with experts or without
* `described`: what the catalogue describes: decoders built as Llama, as GPT, as Mixtral or as Qwen-MoE are
* `vgg`: VGG-19 and stacks of fully connected layers
"""
