"""Every rank's part of a plan, derived in one place.

* `groups`: where each rank stands, and groups of ranks
* `process_groups`: their process groups
* `limits`: what the runtime cannot run
"""
