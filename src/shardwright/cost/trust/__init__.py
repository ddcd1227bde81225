"""How far a figure can be trusted.

* `evidence`: the nearest published runs
* `interval`: the 80 % interval of a time and of the ratio of two plans' times, and chances by it
* `rarity`: doubt of what hardly any published run has
"""
