"""What no composition beats.

* `instance`: one setting on so many units, with its capacities
* `compositions`: micro-batches in a time, whatever the split
* `capacity`: layers within a bottleneck time
* `stage_limits`: layers of one stage
* `travel`: what is left after the pipeline
* `work`: work before and after the bottleneck
"""
