"""Pictures.

* `draw`: the picture of a plan, as a value that a notebook shows
* `timeline`: which stage computes what, when
* `scatter`: predicted against measured
* `spot`: what came of a plan on spot machines
"""
