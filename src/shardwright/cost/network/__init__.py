"""What messages take.

* `collectives`: α–β over the tiers of a cluster: collectives, tokens to experts, to host memory
* `curves`: links as a user measured them
"""
