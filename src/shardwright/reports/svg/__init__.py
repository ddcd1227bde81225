"""Pictures.

* `timeline`: which stage computes what, when
* `scatter`: predicted against measured
"""
