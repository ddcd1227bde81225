"""What hardly any published run has: which strategies have how much of it, and how far their times are doubted.

Of plans that are as good but for a little (`search.objective.preference`) the one with the fewest rare switches comes
first. Rare is what hardly any published run has, and what none has of the plan's kind of model on its architecture,
where there are twenty: tensor-parallel overlap is common on Hopper, and no Ampere run has it. What c of n runs have is
as well tested as these are many: a time predicted with it has a further log error of

    d = 0.02 · log10(n / max(c, 1))

upwards in one run of ten, 2 % for each factor of ten in rarity (chosen, not fitted), and the parts of several add up.
It widens the interval (`cost.trust.interval`) and moves no prediction and no bound. A GPU type that nobody reports on
is rare as well, but has a wider interval of its own. `python -m tools.refit rare` counts.
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
from shardwright.spec.cluster import Gpu
from shardwright.spec.job import Job
from shardwright.spec.model import Kind, Model, training_kind

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
            architecture=row["architecture"] or None,
            model_kind=row["model_kind"] or None,  # type: ignore[arg-type]
        )
        for row in shipped_table("shardwright.cost.trust", "rare_switches.csv")
    )


@cache
def strategy_switches(architecture: str, model_kind: Kind) -> tuple[RareSwitch, ...]:
    """Return what strategies may have that is rare for a kind of model on an architecture."""
    here = ((None, None), (architecture, model_kind))
    return tuple(
        switch
        for switch in rare_switches()
        if switch.axis not in (TYPES, UNREPORTED) and (switch.architecture, switch.model_kind) in here
    )


def switches_for(model: Model, job: Job, gpu: Gpu) -> tuple[RareSwitch, ...]:
    """Return what strategies of a job on such GPUs may have that is rare."""
    return strategy_switches(gpu.architecture, training_kind(model, adapters=bool(job.adapters)))


def rare_counts(rows: Strategies, switches: Collection[RareSwitch]) -> Ints:
    """Return how many of `switches` each strategy has, [N]."""
    return np.asarray(np.sum([_has(rows, switch) for switch in switches], axis=0))


def rare_count_of_gpus(kinds: Collection[str]) -> int:
    """Return how much of what is rare a plan has for being on GPUs of these types."""
    return len(_rare_gpus(kinds))


def doubt(plan: Plan) -> float:
    """Return the log error upwards of a plan's time for what it has of rare switches, those of its GPUs' own aside."""
    switches = (switch for switch in rare_in(plan) if switch.axis != UNREPORTED)
    return sum(DECADE * math.log10(switch.of / max(switch.runs, 1)) for switch in switches)


def rare_in(plan: Plan) -> tuple[RareSwitch, ...]:
    """Return what a plan has of what is rare, on one of its architectures at least."""
    row, types = row_of(plan), plan.gpus_by_type
    used = [pool.gpu for pool in plan.cluster.pools if pool.gpu.name in types]
    known = [switch for gpu in used for switch in switches_for(plan.model, plan.job, gpu)]
    present = {switch.name: switch for switch in known if _has(row, switch)[0]}
    return (*present.values(), *_rare_gpus({gpu.kind for gpu in used}))


def rare_beside(plan: Plan, other: Plan) -> tuple[RareSwitch, ...]:
    """Return what a plan has of what is rare, and `other` has not."""
    both = {switch.name for switch in rare_in(other)}
    return tuple(switch for switch in rare_in(plan) if switch.name not in both)


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
