"""Who runs what: one table of facts, which refusals, the search and the page of documentation read.

* `matrix`: the facts, and those of a plan
* `traits`: what layers of a model have that not every trainer runs
* `refusals`: what of a plan a target does not run, as the facts have it
"""
