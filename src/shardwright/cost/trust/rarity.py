"""What hardly any published run has: which strategies have how much of it, and how far their times are doubted.

Of plans that are as good but for a little (`search.objective.preference`) the one with the fewest rare switches comes
first. What c of n published runs have is as well tested as these are many: a time predicted with it has a further log
error of

    d = 0.02 · log10(n / c)

upwards in one run of ten, 2 % for each factor of ten in rarity (chosen, not fitted), and the parts of several add up.
It widens the interval (`cost.trust.interval`) and moves no prediction and no bound. A GPU type that nobody reports on
is rare as well, but has a wider interval of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import cache

import numpy as np

from shardwright.arrays import Bools, Ints
from shardwright.cost.strategies import Strategies, row_of
from shardwright.cost.trust.evidence import unpublished
from shardwright.files import shipped_table
from shardwright.plans.findings import RareSwitch
from shardwright.plans.plan import Plan

TYPES, UNREPORTED = "gpu_types", "unreported_types"  # axes that are no columns of a strategy
DECADE = 0.02  # log error for each factor of ten in rarity; chosen, 0.01 to 0.04


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


def rare_counts(rows: Strategies) -> Ints:
    """Return how many rare switches each strategy has, [N], whatever GPUs it is on."""
    return np.asarray(np.sum([_has(rows, switch) for switch in _of_strategies()], axis=0))


def rare_count_of_gpus(kinds: Collection[str]) -> int:
    """Return how much of what is rare a plan has for being on GPUs of these types."""
    return len(_rare_gpus(kinds))


def doubt(plan: Plan) -> float:
    """Return the log error upwards of a plan's time for what it has of rare switches, those of its GPUs' own aside."""
    return sum(DECADE * math.log10(switch.of / switch.runs) for switch in rare_in(plan) if switch.axis != UNREPORTED)


def rare_in(plan: Plan) -> tuple[RareSwitch, ...]:
    """Return what a plan has of what is rare."""
    row = row_of(plan)
    gpus = _rare_gpus({pool.gpu.kind for pool in plan.cluster.pools if pool.gpu.name in plan.gpus_by_type})
    return (*(switch for switch in _of_strategies() if _has(row, switch)[0]), *gpus)


def rare_beside(plan: Plan, other: Plan) -> tuple[RareSwitch, ...]:
    """Return what a plan has of what is rare, and `other` has not."""
    both = rare_in(other)
    return tuple(switch for switch in rare_in(plan) if switch not in both)


def _of_strategies() -> list[RareSwitch]:
    """Return what a strategy may have, whatever GPUs it is on."""
    return [switch for switch in rare_switches() if switch.axis not in (TYPES, UNREPORTED)]


def _rare_gpus(kinds: Collection[str]) -> list[RareSwitch]:
    """Return what is rare in a plan on GPUs of these types."""
    values = {TYPES: len(set(kinds)), UNREPORTED: len(unpublished(kinds))}
    return [
        switch
        for switch in rare_switches()
        if switch.axis in values and switch.least <= values[switch.axis] <= switch.most
    ]


def _has(rows: Strategies, switch: RareSwitch) -> Bools:
    values = getattr(rows, switch.axis)
    return np.asarray((values >= switch.least) & (values <= switch.most))
