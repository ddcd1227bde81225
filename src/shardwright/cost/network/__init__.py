"""What messages take.

* `collectives`: α–β over the tiers of a cluster
* `dispatch`: tokens to their experts and back
* `curves`: links as a user measured them
* `host`: to host memory and back
* `messages`: times between the measured sizes
"""
