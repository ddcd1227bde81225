"""New plans at once, from the plan before.

* `quick`: good plans of one setting without a proof
* `remaining`: replicas whose machines are there keep their layers
"""
