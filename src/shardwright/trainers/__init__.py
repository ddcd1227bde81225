"""Which trainer runs what: plans that somebody can run, and who runs a plan, a model or a parameter.

* `runs`: who runs a plan, and who a model at all
* `plan`: the search for plans that some trainer runs
* `evaluate`: a plan beside the best that a trainer of its framework runs
* `shop`: what to rent, for plans that some trainer runs
* `export`: files for a target, where what they start runs the plan
* `support`: the matrix of who runs what, with what the trainers themselves say of models
"""
