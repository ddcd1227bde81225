"""What no composition beats.

* `compositions`: micro-batches in a time, whatever the split
* `capacity`: layers within a bottleneck time
* `stage_limits`: layers of one stage
* `travel`: what is left after the pipeline
* `work`: work before and after the bottleneck
"""
