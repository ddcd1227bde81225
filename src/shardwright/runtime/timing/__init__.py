"""What a run measured.

* `layer_profile`: times of units, the layer profile of a run, and a step as spans, operators among them
* `summary`: measured beside predicted
"""
