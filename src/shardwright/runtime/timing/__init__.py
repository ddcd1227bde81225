"""What a run measured.

* `stopwatch`: times of units and passes
* `layer_profile`: the layer profile of a run
* `step_trace`: a step as spans, operators among them
* `summary`: measured beside predicted
"""
