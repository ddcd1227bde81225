"""What a run measured.

* `stopwatch`: times of units and passes
* `layer_profile`: the layer profile of a run
* `summary`: measured beside predicted
"""
