"""What a plan costs in US dollars.

* `price`: dollars an hour
* `egress`: traffic between sites
* `risk`: interruptions: lost work, checkpoints, restarts
"""
