"""How far a figure can be trusted.

* `evidence`: the nearest published runs
* `chance`: how likely a run ends in time and within its money
* `interval`: the 80 % interval of a time
* `rarity`: doubt of what hardly any published run has
"""
