"""What one composition can do.

* `domains`: in which ways its stages may stand in machines
* `equal_replicas`: where all replicas are copies of one
* `eligible`: which columns a solution can hold, and whether any split fits
* `exact`: told by all of its splits at once, or one by one where they are few
"""
