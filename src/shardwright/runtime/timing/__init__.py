"""What a run measured.

* `layer_profile`: times of units, and the layer profile of a run
* `step_trace`: a step as spans, operators among them
* `summary`: measured beside predicted
"""
