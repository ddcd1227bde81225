"""A search by time: what it is asked, the best plans that it has, and when it ends if it does not reach its gap.

It ends after steps counted, not timed, so that it always ends alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.search.mixed.bounds.instance import Instance
from shardwright.search.mixed.drafts.draft import Draft, under_each_order
from shardwright.search.mixed.heuristics.attempts import Drafter, attempt
from shardwright.search.mixed.master.column_pool import ColumnPool
from shardwright.search.mixed.master.regions import Bounded
from shardwright.search.mixed.tables.columns import Table
from shardwright.search.mixed.tables.region import Region
from shardwright.search.mixed.tables.settings import Setting
from shardwright.search.space.axes import Space
from shardwright.spec.cluster import Cluster

FEW_UNITS = 32  # of which each number of replicas is looked at by itself
MUCH_SLOWER = 1.05  # times the best plan: a plan that is slower under one rank order is not tried under the other
SMALL = 128  # GPUs of which clusters are searched thoroughly
NARROWED = 0.9


@record(kw_only=False)
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


@record
class MixedResult:
    """The best plans, best first, with their values, seconds or those of an objective; `bound`, what no plan of the
    space beats; what was looked at."""

    plans: tuple[tuple[float, Plan], ...]
    bound: float
    candidates: int
    costed: int
    deepest: int


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


@dataclass(slots=True)
class Incumbents:
    """Plans that are `allowed`, the `best` of each kind with its seconds; `seconds` are those to beat."""

    contexts: Sequence[Context]
    cluster: Cluster
    known: Known
    allowed: Callable[[Plan], bool]
    seconds: float
    best: dict[tuple[object, ...], tuple[float, Plan]] = field(default_factory=dict)
    tried: dict[Draft, float] = field(default_factory=dict)
    costed: int = 0

    def offer(self, draft: Draft) -> float:
        """Cost a draft exactly under every rank order and keep the better plan. Return its seconds: infinite where it
        does not fit, the draft's own where these are too many."""
        if draft.seconds >= self.seconds:
            return draft.seconds
        if draft not in self.tried:
            self.tried[draft] = self._cost(draft)
        return self.tried[draft]

    def _cost(self, draft: Draft) -> float:
        best = np.inf
        for plan, seconds in under_each_order(self.contexts, self.cluster, draft, self.known, self.allowed):
            self.costed += 1
            if seconds is None:
                continue
            best = min(best, seconds)
            key = (plan.replicas, plan.micro_batch)
            if key not in self.best or seconds < self.best[key][0]:
                self.best[key] = (seconds, plan)
            self.seconds = min(self.seconds, best)
            if best > MUCH_SLOWER * self.seconds:
                break
        return best


@record
class Effort:
    """Regions that a search looks at, at most; it ends where the last `patience` splits of regions did not narrow the
    gap by a tenth. A region is not split any more where the last `idle` splits that led to it did not raise its bound.
    The integer program of one that can be split is solved where its bound is at least `near` times the cutoff, or
    where units are few."""

    regions: int
    patience: int
    idle: int
    near: float

    def spent(self, regions: int, gaps: Sequence[float]) -> float:
        """Return which part is spent on so many regions, where `gaps` are those before each that was split; at 1 the
        search should end."""
        if len(gaps) > self.patience and gaps[-1] > NARROWED * gaps[-1 - self.patience]:
            return 1.0
        return spent_of(regions, self.regions)


def spent_of(done: int, most: int) -> float:
    """Return the part that is done of what may be done at most."""
    return 1.0 if done >= most else done / most


NO_PROOF = Effort(regions=0, patience=1, idle=1, near=1.0)
QUICK = Effort(regions=100, patience=8, idle=4, near=0.96)
THOROUGH = Effort(regions=300, patience=20, idle=12, near=0.985)


def effort_for(cluster: Cluster) -> Effort:
    """Return the effort that suits a cluster's size."""
    return THOROUGH if cluster.gpus <= SMALL else QUICK
