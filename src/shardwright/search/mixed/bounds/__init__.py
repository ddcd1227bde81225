"""What no composition beats.

* `instance`: one setting on so many units, with its capacities
* `compositions`: micro-batches in a time, whatever the split
* `capacity`: layers of a stage, and of pipelines, within a bottleneck time
* `travel`: what is left after the pipeline
* `work`: work before and after the bottleneck
"""
