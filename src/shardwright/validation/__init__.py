"""Predicted against measured: published runs as plans, errors by group, the nearest evidence.

* `validate`: the library call
* `runs`: the runs that ship, reading of others, and of what their notes say
* `case`: a run as the cost model sees it
* `facts`: single facts of a run, said or taken, and its model
* `forecast`: predictions of many cases
* `outcome`: one run, predicted and measured, why one may be off, and a site's own runs
* `summary`: measures of error, and errors of many outcomes, beside those of two simple predictors
"""
