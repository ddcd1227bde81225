"""The figures that the mixed search works on.

* `settings`: what the stages of a plan have in common, and how replicas share their state
* `compositions`: units of each type that a replica may have, the orders of types, and layers of the ends
* `region`: parts of a setting's plans
* `columns`: seconds and bytes by position
* `model_tables`: their filling by the cost model
"""
