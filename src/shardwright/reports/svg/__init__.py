"""Pictures.

* `draw`: the picture of a plan, as a value that a notebook shows
* `timeline`: which stage computes what, when
* `scatter`: predicted against measured
"""
