"""Pictures.

* `timeline`: a plan as a picture: which stage computes what, when
* `scatter`: predicted against measured
* `spot`: what came of a plan on spot machines
"""
