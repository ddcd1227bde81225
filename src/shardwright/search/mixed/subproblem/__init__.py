"""What one composition can do.

* `pricing`: which columns a solution can hold
* `fitting`: whether any split fits and has the ends that are asked for
* `exact`: told by all of its splits at once
* `listed`: told by its splits one by one, where they are few
"""
