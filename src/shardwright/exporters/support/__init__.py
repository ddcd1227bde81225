"""Who runs what: one table of facts, which refusals, the search and the page of documentation read.

* `matrix`: the facts, and those of a plan
* `traits`: what a plan asks of a trainer that not every one has
* `refusals`: what of a plan a target does not run, as the facts have it
"""
