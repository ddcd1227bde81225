"""The transformer that a `Model` describes, built unit by unit, so that a rank has the units of its stages alone.

* `chunk`: the forward pass through a run of units
* `blocks`: attention and feed-forward blocks, and layers compiled
* `gated`: the inner part of feed-forward blocks
* `mixers`: what mixes tokens in layers without attention: Mamba, gated delta nets, lightning attention, convolutions
* `scans`: their recurrences, chunk by chunk
* `experts`: mixtures of experts
* `context`: context parallelism, and attention under it
* `products`: products with the matrices of a layer, in 8 bits too, and with adapters beside them, and what they keep
* `nf4`: frozen matrices in 4 bits, and products with them
* `parallel`: communication inside a stage, with its gradient
* `loss`: rows of the embedding, and cross-entropy, over a split vocabulary
* `attention`: its windows, documents and scores, and rotary positions
* `parameters`: names, shapes and cuts of parameters, and which are trained
* `initial`: initial values
* `words`: what Hugging Face calls blocks
* `names`: its name of each parameter, family by family
* `fused`: tensors of files that hold several parameters
* `details`: epsilons, scaling of positions, weights of the router
"""
