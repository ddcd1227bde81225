"""What a user says and the facts of the catalogue, as validated frozen objects.

* `model`: the shape of a model, block by block, and of the towers before it
* `layer`: one block: attention, dense and routed feed-forward blocks
* `forward_pass`: what a model computes that no size tells
* `mixers`: kinds of mixers of tokens that are no softmax attention
* `streams`: several residual streams
* `cluster`: machines, their GPUs and links, and what a description left open
* `job`: what to train on and what the user wants of it, and which dispatcher that takes
* `images`: the images of a sequence, as the tower of a model takes them
* `tiles`: how images are cut for it
* `sounds`: the sounds of a sequence
* `adapter`: what is trained beside frozen weights
* `preference`: losses over what people prefer, and what they run for a sample
* `options`: what a trainer leaves to choose beside the layout
* `offers`: machines that one could rent
* `layer_profile`: a user's own layer times
* `read/`: from files, mappings and short forms to these objects
* `catalog/`: facts of GPUs, links, machines, prices and models, each with source and date
* `text/`: reading of text, JSON and YAML, and checked access to its fields

Nothing here estimates, searches or writes, and nothing here imports a higher floor, numpy or any other heavy package.
This module re-exports nothing, so that importing one description does not load the readers of the others.
"""
