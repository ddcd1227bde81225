"""Graphs of well-known models, built without tracing: one training step, forward and backward, of given dimensions.

* `tape`: records operators and then their gradients
* `transformers`: BERT, GPT-2, Llama, ViT, with experts or without
* `described`: what the catalogue describes: dense decoders built as Llama or as GPT are
* `vgg`: VGG-19 and stacks of fully connected layers
"""
