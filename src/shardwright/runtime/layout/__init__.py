"""Every rank's part of a plan, derived in one place.

* `places`: where each rank stands
* `groups`: groups of ranks
* `process_groups`: their process groups
* `limits`: what the runtime cannot run
"""
