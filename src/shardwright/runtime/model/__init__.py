"""The transformer that a `Model` describes, built unit by unit, so that a rank has the units of its stages alone.

* `chunk`: the forward pass through a run of units
* `blocks`: attention and feed-forward blocks
* `gated`: the inner part of feed-forward blocks
* `experts`: mixtures of experts
* `grouped`: products of rows with the matrix of their expert
* `context`: context parallelism
* `context_attention`: attention under it, which keeps its own part of keys and values
* `products`: products with the matrices of a layer, and what they keep
* `fp8`: the same in 8 bits
* `low_rank`: the same with adapters beside them
* `parallel`: communication inside a stage, with its gradient
* `loss`: cross-entropy over a split vocabulary
* `rotary`: rotary positions
* `masks`: attention, its windows and documents
* `scores`: scores of attention: scales, caps, ALiBi, sinks
* `regions`: layers compiled
* `parameters`: names, shapes and cuts of parameters
* `adapters`: which of them are trained, and those of adapters
* `initial`: initial values
* `names`: Hugging Face's names
* `fused`: tensors of files that hold several parameters
* `details`: epsilons, scaling of positions, weights of the router
"""
