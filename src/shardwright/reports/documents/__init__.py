"""Results as JSON documents.

* `ranking`: rankings and evaluations
* `shop`: a search over offers
* `spot`: a simulation of spot machines
* `validation`: predicted against measured
* `schemas`: JSON schemas of all
* `shapes`: the pieces of these schemas
* `run_schemas`: JSON schemas of what is said of runs and programs
* `input_schemas`: JSON schemas of the files that users write or measure
"""
