"""The mixed search: branch and bound over settings, numbers of replicas and what is left after the pipeline.

Each region of a setting has a lower bound, from the integer program over its compositions. The region of least bound
comes first: plans are made of its solution, then it is split, until the best plan is within the gap of the least bound.
What the search returns is exact under the cost model; the bound holds for the space it declares.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import partial

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.cost.strategies import Ints
from shardwright.plans.plan import Plan
from shardwright.search.mixed.drafts.costing import under_each_order
from shardwright.search.mixed.drafts.draft import Draft
from shardwright.search.mixed.effort import Effort
from shardwright.search.mixed.field import Field, fields
from shardwright.search.mixed.heuristics.attempts import attempt, closing
from shardwright.search.mixed.heuristics.equal import equal_replicas
from shardwright.search.mixed.master.column_pool import Listing
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
HOPELESS = 1e4  # times what all GPUs need at full speed, beyond which no plan is looked for
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


@dataclass(order=True, slots=True)
class Node:
    """A region with a bound of its own, or with that of the region it is part of where it has not been looked at. That
    one had a bound `before`, the last `idle` of those that this is part of none better than the ones before them."""

    bound: float
    order: int
    each: Field = dataclass_field(compare=False)
    region: Region = dataclass_field(compare=False)
    counts: Ints | None = dataclass_field(compare=False, default=None)
    own: Listing | None = dataclass_field(compare=False, default=None)
    before: float = dataclass_field(compare=False, default=0.0)
    idle: int = dataclass_field(compare=False, default=0)


@dataclass(slots=True)
class _Run:
    problem: Problem
    allowed: Callable[[Plan], bool]
    ceiling: float
    best: dict[tuple[object, ...], tuple[float, Plan]] = dataclass_field(default_factory=dict)
    tried: dict[Draft, float] = dataclass_field(default_factory=dict)
    candidates: int = 0
    costed: int = 0
    regions: int = 0

    @property
    def goal(self) -> float:
        """What a plan must beat to be better by more than the gap."""
        return self.ceiling / (1.0 + self.problem.gap)


def search(problem: Problem, ceiling: float, allowed: Callable[[Plan], bool]) -> Found:
    """Return the best plans that are `allowed`, and the least time that no plan of the space can beat; `ceiling` are
    the seconds to beat."""
    problem = replace(problem, gap=max(problem.gap, LEAST_GAP))
    all_fields = fields(problem.settings, problem.tables, problem.contexts[0].job.global_batch, problem.space)
    run = _Run(problem, allowed, min(ceiling, HOPELESS * max((each.quick for each in all_fields), default=np.inf)))
    _scout(run, all_fields)
    roots = [(each, region) for each in all_fields for region in each.roots(problem.space)]
    heap = [Node(each.quick, place, each, region) for place, (each, region) in enumerate(roots)]
    heapq.heapify(heap)
    bound, order = np.inf, len(heap)
    gaps: list[float] = []
    while heap and heap[0].bound < run.goal and run.regions < problem.effort.regions:
        if problem.effort.spent(gaps):
            break
        node = heapq.heappop(heap)
        if node.own is None:
            if _look(run, node):
                heapq.heappush(heap, node)
            continue
        gaps.append(float(np.log(run.ceiling / min(node.bound, bound))))
        _attempt(run, node.each, node.region, node.bound, node.own)
        if node.bound >= run.goal or (node.bound >= problem.effort.near * run.goal and _closed(run, node)):
            continue
        idle = 0 if node.bound > node.before * (1.0 + HELPS * problem.gap) else node.idle + 1
        split = parts(node.each, node.region, run.ceiling) if idle < problem.effort.idle else []
        if not split:
            _raised(run, node)
            bound = min(bound, node.bound)
            continue
        counts = node.own.counts_within(run.goal)
        for region in split:
            order += 1
            heapq.heappush(heap, Node(node.bound, order, node.each, region, counts, before=node.bound, idle=idle))
    bound = min([bound, run.goal, *(node.bound for node in heap)])
    return Found(
        plans=tuple(sorted(run.best.values(), key=lambda item: item[0])),
        lower_bound_seconds=bound,
        candidates=run.candidates,
        costed=run.costed,
        deepest=max((each.depth for each in all_fields), default=0),
    )


def _scout(run: _Run, all_fields: Sequence[Field]) -> None:
    """Make plans of the settings that look best by a few compositions, so that the search begins with good ones."""
    for regions in (_whole, _numbered):
        seen: list[tuple[float, int, Region, Listing]] = []
        least: dict[tuple[int, tuple[int, ...]], float] = {}
        for place, each in enumerate(all_fields):
            counts: Ints | None = None
            for region in regions(each, run.problem.space):
                kind = (region.fewest, region.used)
                high = min(run.ceiling, LESS_GOOD * least.get(kind, np.inf))
                if each.quickest(region) >= min(high, run.goal):
                    continue
                counts = _sampled(run, each) if counts is None else counts
                allowed = counts[usable(each.table, counts, region)]
                listing = Listing(each, region, allowed, run.ceiling, ordered=False)
                if listing.limit(high) >= each.total:
                    seconds, _ = shortest(listing.limit, each.total, each.quick, high)
                    least[kind] = min(seconds, least.get(kind, np.inf))
                    seen.append((seconds, place, region, listing))
        best: Counter[tuple[int, tuple[int, ...]]] = Counter()
        for seconds, place, region, listing in sorted(seen, key=lambda entry: entry[:2]):
            best[region.fewest, region.used] += 1
            if best[region.fewest, region.used] <= SCOUTED and seconds < run.goal:
                _attempt(run, all_fields[place], region, seconds, listing)
                if regions is _whole:
                    equal_replicas(all_fields[place], region, run.ceiling, partial(_offer, run))


def _sampled(run: _Run, each: Field) -> Ints:
    """Return the compositions to scout with."""
    counts = each.compositions(run.problem.space)
    return counts[each.samples(counts)]


def _whole(each: Field, space: Space) -> list[Region]:
    return each.roots(space)[:1]


def _numbered(each: Field, space: Space) -> list[Region]:
    """Return the regions of so many replicas exactly, on all types and on each, where there are few units."""
    roots, units = each.roots(space)[:1], each.table.units
    few = units.sum() <= FEW_UNITS and "dp" not in space.pins
    numbers = [2**power for power in range(FEW_UNITS.bit_length()) if few and roots and 2**power <= roots[0].most]
    whole = [replace(root, fewest=number, most=number) for root in roots for number in numbers]
    pure = [replace(part, used=(kind,)) for part in whole for kind in np.flatnonzero(units >= part.fewest).tolist()]
    return whole + pure


def _attempt(run: _Run, each: Field, region: Region, bound: float, listing: Listing) -> None:
    attempt(each, region, bound, listing, partial(_offer, run), lambda: run.ceiling, run.problem.gap)


def _look(run: _Run, node: Node) -> bool:
    """Give a node its own bound. Return whether its region can hold a plan better by more than the gap."""
    counts = node.each.compositions(run.problem.space) if node.counts is None else node.counts
    if node.each.quickest(node.region) >= run.goal:
        return False
    run.regions += 1
    run.candidates += len(counts)
    found = bounded(node.each, node.region, counts, known=node.bound, ceiling=run.ceiling, gap=run.problem.gap)
    if found is None:
        return False
    bound, node.own = found
    node.bound = bound
    return True


def _closed(run: _Run, node: Node) -> bool:
    """Solve the integer program of a region. Return whether there is no solution below the best plan by more than the
    gap."""
    return _closing(run, node, run.goal) is False


def _raised(run: _Run, node: Node) -> None:
    """Raise the bound of a region by its integer program, as far as that goes."""
    low, high = node.bound, run.goal
    for _ in range(CLOSER):
        if high - low <= 0.3 * max(run.problem.gap, FINEST) * high:
            break
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _closing(run, node, middle) is False else (low, min(middle, run.goal))
    node.bound = max(node.bound, low)


def _closing(run: _Run, node: Node, seconds: float) -> Draft | bool | None:
    assert node.own is not None, "it has been looked at"
    found = closing(node.each, node.region, node.own, seconds)
    if isinstance(found, Draft):
        _offer(run, found)
    return found


def _offer(run: _Run, draft: Draft) -> float:
    """Cost a draft exactly under every rank order and keep the better plan. Return its seconds: infinite where it does
    not fit, the draft's own where these are too many."""
    if draft.seconds >= run.ceiling:
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
        run.ceiling = min(run.ceiling, best)
        if best > MUCH_SLOWER * run.ceiling:
            break
    return best
