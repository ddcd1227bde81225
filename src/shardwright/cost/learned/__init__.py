"""Efficiency learned from measured operators and collectives.

* `learned`: the efficiency model
* `features`: columns of each family of operators
* `fitted`: the fits that ship in `data/`, and forests of trees
* `offsets`: how far a whole GPU lies from what shapes predict
* `machine`: what the models know of a GPU
* `links`: links as collectives were measured to find them
"""

from __future__ import annotations

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.learned.learned import Learned as Learned


def default_efficiency() -> Efficiency:
    """Return the efficiency that planning uses where the user gives none."""
    return Learned()
