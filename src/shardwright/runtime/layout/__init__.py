"""Every rank's part of a plan, derived in one place.

* `places`: where each rank stands
* `groups`: groups of ranks
* `process_groups`: their process groups
* `transfers`: who sends what between two stages
* `limits`: what the runtime cannot run
* `forecast`: what the cost model says of each stage
"""
