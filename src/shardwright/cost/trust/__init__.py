"""How far a figure can be trusted.

* `comparison`: the 80 % interval of the ratio of two plans' times
* `evidence`: the nearest published runs
* `interval`: the 80 % interval of a time, and chances by it
* `rarity`: doubt of what hardly any published run has
"""
