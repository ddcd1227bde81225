"""How far a figure can be trusted.

* `evidence`: the nearest published runs
* `interval`: the 80 % interval of a time
* `basis`: what a prediction is based on
"""
