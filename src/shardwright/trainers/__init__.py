"""Which trainer runs what: plans that somebody can run, and who runs a plan, a model or a parameter.

* `runs`: who runs a plan, a model or an option, as a matrix too, and the files for those
* `arguments`: what a call of `plan` is told
* `plan`: plans that some trainer runs, searched, and beside a plan that is given
* `fit`: what fits some GPUs, of the ways to train that some trainer has
* `shop`: what to rent, for plans that some trainer runs
"""
