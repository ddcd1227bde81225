"""What a search by time is asked, and how far it has got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.search.mixed.bounds.instance import Instance
from shardwright.search.mixed.branch_and_bound.effort import Effort
from shardwright.search.mixed.branch_and_bound.incumbents import Incumbents
from shardwright.search.mixed.heuristics.attempts import Drafter, attempt
from shardwright.search.mixed.master.column_pool import ColumnPool
from shardwright.search.mixed.master.regions import Bounded
from shardwright.search.mixed.tables.columns import Table
from shardwright.search.mixed.tables.region import Region
from shardwright.search.mixed.tables.settings import Setting
from shardwright.search.space.axes import Space
from shardwright.spec.cluster import Cluster

FEW_UNITS = 32  # of which each number of replicas is looked at by itself


@dataclass(frozen=True, slots=True)
class MixedProblem:
    """What is searched: a context for each GPU type, the cluster, the pins, and the settings with their tables. A bound
    above `enough` seconds is of no use: some plan takes no longer, whatever comes first for its doubts."""

    contexts: tuple[Context, ...]
    cluster: Cluster
    space: Space
    gap: float
    settings: tuple[Setting, ...]
    tables: tuple[Table, ...]
    known: Known
    effort: Effort
    enough: float = np.inf


@dataclass(slots=True)
class Run:
    """How far a search has got: the best plans, what was counted, the gaps of the regions looked at in turn, and
    the settings of which plans were made; `wholes` are the bounds of those of few units."""

    problem: MixedProblem
    incumbents: Incumbents
    drafters: Sequence[Drafter]
    candidates: int = 0
    regions: int = 0
    gaps: list[float] = field(default_factory=list)
    begun: set[Drafter] = field(default_factory=set)
    wholes: list[tuple[Drafter, Bounded]] = field(default_factory=list)

    @property
    def incumbent(self) -> float:
        return self.incumbents.seconds

    @property
    def target(self) -> float:
        """What a plan must beat to be better by more than the gap."""
        return self.incumbent / (1.0 + self.problem.gap)

    @property
    def cutoff(self) -> float:
        """Up to which time there is anything to prove."""
        return min(self.target, self.problem.enough)


def has_few_units(instance: Instance) -> bool:
    """Return whether each number of replicas is looked at by itself."""
    return int(instance.table.units.sum()) <= FEW_UNITS


def attempted(run: Run, by: Drafter, region: Region, bound: float, columns: ColumnPool) -> None:
    """Make plans of the solution of a region, whose bound is `bound` seconds."""
    attempt(by, region, bound, columns, run.incumbents.offer, lambda: run.incumbent, run.problem.gap)
