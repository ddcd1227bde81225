"""The mixed search: branch and bound over settings, numbers of replicas and what is left after the pipeline.

Each region of a setting has a lower bound, from the integer program over its compositions. The region of least bound
comes first: plans are made of its solution, then it is split, until the best plan is within the gap of the least bound.
What the search returns is exact under the cost model; the bound holds for the space it declares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import partial

import numpy as np

from shardwright.arrays import Ints, picked
from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.plans.plan import Plan
from shardwright.search.mixed.bounds.instance import HOPELESS, Instance, instances
from shardwright.search.mixed.branch_and_bound.effort import Effort
from shardwright.search.mixed.branch_and_bound.tree import (
    Branched,
    Node,
    Pruned,
    Rebounded,
    Step,
    Undecided,
    least_bound,
)
from shardwright.search.mixed.drafts.costing import under_each_order
from shardwright.search.mixed.drafts.draft import Draft
from shardwright.search.mixed.heuristics.attempts import Drafter, attempt, drafter, solve_within
from shardwright.search.mixed.heuristics.equal import equal_replicas
from shardwright.search.mixed.heuristics.side_by_side import side_by_side
from shardwright.search.mixed.master.answer import Infeasible, Solved
from shardwright.search.mixed.master.column_pool import ColumnPool, RuledOut
from shardwright.search.mixed.master.regions import bounded, parts, shortest
from shardwright.search.mixed.tables.columns import Table
from shardwright.search.mixed.tables.region import Region, usable
from shardwright.search.mixed.tables.settings import Setting
from shardwright.search.space.axes import Space
from shardwright.spec.cluster import Cluster

HELPS = 0.05  # part of the gap by which a split that helps raises the bound
SCOUTED = 3  # settings of which plans are made at once
FEW_UNITS = 16
LESS_GOOD = 1.02  # times the best by a few compositions, beyond which a setting is not scouted
CLOSER = 5  # times that the integer program of a region is solved to raise its bound
FINEST = 0.003  # least gap that this aims at
LEAST_GAP = 2.5e-5  # below which a plan counts as the best
MUCH_SLOWER = 1.05  # times the best plan: a plan that is slower under one rank order is not tried under the other


@dataclass(frozen=True, slots=True)
class Problem:
    """What is searched: a context for each GPU type, the cluster, the pins, and the settings with their tables."""

    contexts: tuple[Context, ...]
    cluster: Cluster
    space: Space
    gap: float
    settings: tuple[Setting, ...]
    tables: tuple[Table, ...]
    known: Known
    effort: Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best plans found, best first, with their seconds; the certificate; what was looked at."""

    plans: tuple[tuple[float, Plan], ...]
    lower_bound_seconds: float
    candidates: int
    costed: int
    deepest: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A region of an instance: `counts` are its compositions (None: all), `columns` those that prove its own bound
    (None: it has that of the region it is part of). That one had a bound `before`, the last `idle` of those that this
    is part of none better than the ones before them; it has `ruled_out` what this need not look at again."""

    by: Drafter
    region: Region
    counts: Ints | None = None
    columns: ColumnPool | None = None
    before: float = 0.0
    idle: int = 0
    ruled_out: RuledOut = dataclass_field(default_factory=dict)


@dataclass(slots=True)
class _Run:
    problem: Problem
    allowed: Callable[[Plan], bool]
    incumbent: float
    best: dict[tuple[object, ...], tuple[float, Plan]] = dataclass_field(default_factory=dict)
    tried: dict[Draft, float] = dataclass_field(default_factory=dict)
    candidates: int = 0
    costed: int = 0
    regions: int = 0
    gaps: list[float] = dataclass_field(default_factory=list)

    @property
    def cutoff(self) -> float:
        """What a plan must beat to be better by more than the gap."""
        return self.incumbent / (1.0 + self.problem.gap)


def search(problem: Problem, incumbent: float, allowed: Callable[[Plan], bool]) -> Found:
    """Return the best plans that are `allowed`, and the least time that no plan of the space can beat; `incumbent` are
    the seconds to beat."""
    problem = replace(problem, gap=max(problem.gap, LEAST_GAP))
    found = instances(problem.settings, problem.tables, problem.contexts[0].job.global_batch, problem.space)
    run = _Run(problem, allowed, min(incumbent, HOPELESS * max((each.quick for each in found), default=np.inf)))
    drafters = [drafter(each) for each in found]
    _scout(run, drafters)
    bound = least_bound(
        [(by.instance.quick, _Part(by, region)) for by in drafters for region in by.instance.roots(problem.space)],
        partial(_processed, run),
        cutoff=lambda: run.cutoff,
        spent=lambda _: problem.effort.spent(run.regions, run.gaps),
    )
    if bound < run.cutoff:
        _side_by_side(run, drafters)
    return Found(
        plans=tuple(sorted(run.best.values(), key=lambda item: item[0])),
        lower_bound_seconds=bound,
        candidates=run.candidates,
        costed=run.costed,
        deepest=max((each.depth for each in found), default=0),
    )


def _processed(run: _Run, node: Node[_Part]) -> Step[_Part]:
    """Bound a region that has no bound of its own yet. Of one that has, make plans, and branch on its parts."""
    part = node.part
    if part.columns is None:
        return _bounded(run, node)
    run.gaps.append(float(np.log(run.incumbent / node.proven)))
    _attempt(run, part.by, part.region, node.bound, part.columns)
    effort, gap = run.problem.effort, run.problem.gap
    if node.bound >= run.cutoff or (node.bound >= effort.near * run.cutoff and _excluded(run, part, run.cutoff)):
        return Pruned()
    idle = 0 if node.bound > part.before * (1.0 + HELPS * gap) else part.idle + 1
    split = parts(part.by.instance, part.region, run.incumbent) if idle < effort.idle else []
    if not split:
        return Undecided(_raised(run, part, node.bound))
    counts = part.columns.counts_within(run.cutoff)
    child = _Part(part.by, part.region, counts, before=node.bound, idle=idle, ruled_out=part.columns.ruled_out)
    return Branched([(node.bound, replace(child, region=each)) for each in split])


def _bounded(run: _Run, node: Node[_Part]) -> Step[_Part]:
    """Give a region its own bound."""
    part, instance = node.part, node.part.by.instance
    counts = instance.compositions(run.problem.space) if part.counts is None else part.counts
    if instance.quickest(part.region) >= run.cutoff:
        return Pruned()
    run.regions += 1
    run.candidates += len(counts)
    found = bounded(
        instance,
        part.region,
        counts,
        known=node.bound,
        incumbent=run.incumbent,
        gap=run.problem.gap,
        ruled_out=part.ruled_out,
    )
    if isinstance(found, Infeasible):
        return Pruned()
    return Rebounded(found.seconds, replace(part, columns=found.columns))


def _scout(run: _Run, drafters: Sequence[Drafter]) -> None:
    """Make plans of the settings that look best by a few compositions, so that the search begins with good ones."""
    for regions in (_whole, _numbered):
        seen: list[tuple[float, int, Region, ColumnPool]] = []
        least: dict[tuple[int, tuple[int, ...]], float] = {}
        for place, by in enumerate(drafters):
            each = by.instance
            counts: Ints | None = None
            for region in regions(each, run.problem.space):
                kind = (region.fewest, region.used)
                high = min(run.incumbent, LESS_GOOD * least.get(kind, np.inf))
                if each.quickest(region) >= min(high, run.cutoff):
                    continue
                counts = _sampled(run, each) if counts is None else counts
                allowed = picked(counts, usable(each.table, counts, region))
                columns = ColumnPool(each, region, allowed, run.incumbent, ordered=False)
                if columns.limit(high) >= each.total:
                    seconds, _ = shortest(columns.limit, each.total, each.quick, high)
                    least[kind] = min(seconds, least.get(kind, np.inf))
                    seen.append((seconds, place, region, columns))
        best: Counter[tuple[int, tuple[int, ...]]] = Counter()
        for seconds, place, region, columns in sorted(seen, key=lambda entry: entry[:2]):
            best[region.fewest, region.used] += 1
            if best[region.fewest, region.used] <= SCOUTED and seconds < run.cutoff:
                _attempt(run, drafters[place], region, seconds, columns)
                if regions is _whole:
                    equal_replicas(drafters[place], region, run.incumbent, partial(_offer, run))


def _sampled(run: _Run, instance: Instance) -> Ints:
    """Return the compositions to scout with."""
    counts = instance.compositions(run.problem.space)
    return picked(counts, instance.samples(counts))


def _whole(instance: Instance, space: Space) -> list[Region]:
    return instance.roots(space)[:1]


def _numbered(instance: Instance, space: Space) -> list[Region]:
    """Return the regions of so many replicas exactly, on all types and on each, where there are few units."""
    roots, units = instance.roots(space)[:1], instance.table.units
    few = units.sum() <= FEW_UNITS and "dp" not in space.pins
    numbers = [2**power for power in range(FEW_UNITS.bit_length()) if few and roots and 2**power <= roots[0].most]
    whole = [replace(root, fewest=number, most=number) for root in roots for number in numbers]
    pure = [replace(part, used=(kind,)) for part in whole for kind in np.flatnonzero(units >= part.fewest).tolist()]
    return whole + pure


def _side_by_side(run: _Run, drafters: Sequence[Drafter]) -> None:
    """Make plans of replicas of one type each, whatever the setting: the tree, which follows the bounds, may have spent
    itself on settings whose bounds are far below their plans."""
    space = run.problem.space
    whole = [(by, region) for by in drafters for region in _whole(by.instance, space)]
    open_ones = [(by, region) for by, region in whole if by.instance.quickest(region) < run.cutoff]
    side_by_side(open_ones, space, lambda: run.incumbent, partial(_offer, run))


def _attempt(run: _Run, by: Drafter, region: Region, bound: float, columns: ColumnPool) -> None:
    attempt(by, region, bound, columns, partial(_offer, run), lambda: run.incumbent, run.problem.gap)


def _raised(run: _Run, part: _Part, low: float) -> float:
    """Return the bound of a region, raised from `low` by its integer program as far as that goes."""
    least, high = low, run.cutoff
    for _ in range(CLOSER):
        if high - low <= 0.3 * max(run.problem.gap, FINEST) * high:
            break
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _excluded(run, part, middle) else (low, min(middle, run.cutoff))
    return max(least, low)


def _excluded(run: _Run, part: _Part, seconds: float) -> bool:
    """Solve the integer program of a region. Return whether it has no solution within `seconds`; offer one it has."""
    assert part.columns is not None, "it has been bounded"
    found = solve_within(part.by, part.region, part.columns, seconds)
    if isinstance(found, Solved):
        _offer(run, found.solution)
    return isinstance(found, Infeasible)


def _offer(run: _Run, draft: Draft) -> float:
    """Cost a draft exactly under every rank order and keep the better plan. Return its seconds: infinite where it does
    not fit, the draft's own where these are too many."""
    if draft.seconds >= run.incumbent:
        return draft.seconds
    if draft not in run.tried:
        run.tried[draft] = _cost(run, draft)
    return run.tried[draft]


def _cost(run: _Run, draft: Draft) -> float:
    contexts, best = run.problem.contexts, np.inf
    for plan, seconds in under_each_order(contexts, run.problem.cluster, draft, run.problem.known, run.allowed):
        run.costed += 1
        if seconds is None:
            continue
        best = min(best, seconds)
        key = (plan.replicas, plan.micro_batch)
        if key not in run.best or seconds < run.best[key][0]:
            run.best[key] = (seconds, plan)
        run.incumbent = min(run.incumbent, best)
        if best > MUCH_SLOWER * run.incumbent:
            break
    return best
