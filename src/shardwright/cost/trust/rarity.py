"""How far a strategy is doubted for what hardly any published run has.

What c of n published runs have is as well tested as these are many; a strategy that has it is taken to need a part

    d = 0.02 · log10(n / c)

more time than predicted: 2 % for each factor of ten in rarity (chosen, not fitted), and the parts of several add up.
The doubt decides which plan comes first. It changes no prediction and no bound.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from shardwright.arrays import Bools, Floats
from shardwright.cost.strategies import Strategies
from shardwright.files import shipped_table
from shardwright.plans.findings import RareSwitch
from shardwright.rounding import coarse

DECADE = 0.02  # of the time, for each factor of ten in rarity; chosen: it orders plans and moves no prediction


@cache
def rare_switches() -> tuple[RareSwitch, ...]:
    """Return what few published runs have, as `data/rare_switches.csv` counts them."""
    return tuple(
        RareSwitch(
            name=row["name"],
            axis=row["axis"],
            least=float(row["least"]),
            most=float(row["most"]),
            runs=int(row["runs"]),
            of=int(row["of"]),
        )
        for row in shipped_table("shardwright.cost.trust", "rare_switches.csv")
    )


def doubts(rows: Strategies) -> Floats:
    """Return by what part of its time each strategy is doubted, [N]."""
    each = [coarse(DECADE * np.log10(switch.of / switch.runs)) * _has(rows, switch) for switch in rare_switches()]
    return np.asarray(np.sum(each, axis=0))


def rare_in(row: Strategies) -> tuple[RareSwitch, ...]:
    """Return what a single strategy has of these."""
    return tuple(switch for switch in rare_switches() if _has(row, switch)[0])


def _has(rows: Strategies, switch: RareSwitch) -> Bools:
    values = getattr(rows, switch.axis)
    return np.asarray((values >= switch.least) & (values <= switch.most))
