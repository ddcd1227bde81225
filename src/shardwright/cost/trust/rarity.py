"""How far a strategy is doubted for what hardly any published run has.

What c of n published runs have is as well tested as these are many; a strategy that has it is taken to need a part

    d = 0.02 · log10(n / c)

more time than predicted: 2 % for each factor of ten in rarity (chosen, not fitted), and the parts of several add up.
The doubt decides which plan comes first. It changes no prediction and no bound.

What no run has, a GPU type that nobody reports on, counts as half a run: 7.6 %. That a plan spans several GPU types
counts like any other rarity: 23 of 3,103 runs did, 4.3 %. So a plan on one known type comes before one that joins it to
an unreported type and saves less than both; and what is doubted itself, like optimizer offload, does not make room for
a slower plan over all types, which is less tested still.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from functools import cache

import numpy as np

from shardwright.arrays import Bools, Floats
from shardwright.cost.strategies import Strategies, row_of
from shardwright.cost.trust.evidence import unpublished
from shardwright.files import shipped_table
from shardwright.plans.findings import RareSwitch
from shardwright.plans.plan import Plan
from shardwright.rounding import coarse

TYPES, UNREPORTED = "gpu_types", "unreported_types"  # axes that are no columns of a strategy
NONE = 0.5  # runs that what has none counts as; chosen, 0.3 to 1
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
    """Return by what part of its time each strategy is doubted, [N], whatever GPUs it is on."""
    return np.asarray(np.sum([_part(switch) * _has(rows, switch) for switch in _of_strategies()], axis=0))


def doubt_of_gpus(kinds: Collection[str]) -> float:
    """Return by what part of its time a plan on GPUs of these types is doubted for that."""
    return sum(map(_part, _rare_gpus(kinds)))


def least_doubt_of_several(kinds: Collection[str]) -> float:
    """Return by what part of its time a plan on two or more of these types of GPUs is doubted for that at least."""
    return min(map(doubt_of_gpus, itertools.combinations(kinds, 2)), default=0.0)


def doubt(plan: Plan) -> float:
    """Return by what part of its time a plan is doubted."""
    return sum(map(_part, rare_in(plan)))


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


def _part(switch: RareSwitch) -> float:
    return float(coarse(DECADE * np.log10(switch.of / max(switch.runs, NONE))))


def _has(rows: Strategies, switch: RareSwitch) -> Bools:
    values = getattr(rows, switch.axis)
    return np.asarray((values >= switch.least) & (values <= switch.most))
