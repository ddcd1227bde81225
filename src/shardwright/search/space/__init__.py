"""The space of uniform strategies: every row legal, none costed.

* `parameters`: names of parameters, for pins and rules, as a table
* `axes`: axes, their values and pins, and options of the trainer that the user pins
* `layouts`: which GPU holds what
* `expand`: layouts to complete strategies, axis by axis, recomputation last
"""
