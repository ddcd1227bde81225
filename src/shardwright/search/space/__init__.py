"""The space of uniform strategies: every row legal, none costed.

* `axes`: axes, their values and pins
* `layouts`: which GPU holds what
* `expand`: layouts to complete strategies, axis by axis
"""
