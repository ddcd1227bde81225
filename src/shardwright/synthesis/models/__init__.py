"""Graphs of well-known models, built without tracing: one training step, forward and backward, of given dimensions.

* `tape`: operators with their gradients, recorded forward and then in reverse
* `transformers`: BERT, GPT-2, Llama, Mixtral, with experts or without, and what the catalogue describes: decoders built
  as Llama, as GPT, as Mixtral or as Qwen-MoE are
"""
