"""The figures that the mixed search works on.

* `settings`: what the stages of a plan have in common
* `sharing`: how replicas share their state
* `ends`: layers of the first and the last stage
* `compositions`: units of each type that a replica may have
* `orders`: orders of their types in the pipeline
* `region`: parts of a setting's plans
* `columns`: seconds and bytes by position
* `model_tables`: their filling by the cost model
"""
