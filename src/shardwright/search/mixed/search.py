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
from shardwright.cost.lanes import Known
from shardwright.cost.strategy import Ints
from shardwright.plan.check import check
from shardwright.plan.plan import Plan, RankOrder
from shardwright.search.mixed.attempts import attempt, closing
from shardwright.search.mixed.costing import fitting_seconds
from shardwright.search.mixed.draft import Draft, plan_of
from shardwright.search.mixed.effort import Effort
from shardwright.search.mixed.field import Field, fields
from shardwright.search.mixed.listing import Listing
from shardwright.search.mixed.region import Region, usable
from shardwright.search.mixed.regions import FINEST, bounded, parts, shortest
from shardwright.search.mixed.settings import Setting
from shardwright.search.mixed.tables import Table
from shardwright.search.space import Space
from shardwright.spec.cluster import Cluster

SCOUTED = 3  # settings of which plans are made at once
FEW_UNITS = 16
CLOSER = 5  # times that the integer program of a region is solved
MUCH_SLOWER = 1.05  # times the best plan: a plan that is slower under one rank order is not tried under the other
ORDERS: tuple[RankOrder, ...] = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is searched: a context for each GPU type, the cluster, the pins, and the settings with their tables.
    `hints` are compositions that a good plan may have."""

    contexts: tuple[Context, ...]
    cluster: Cluster
    space: Space
    gap: float
    settings: tuple[Setting, ...]
    tables: tuple[Table, ...]
    known: Known
    effort: Effort
    hints: tuple[tuple[int, ...], ...] = ()
    orders: tuple[RankOrder, ...] = ORDERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best plans found, best first, with their seconds; the certificate; what was looked at."""

    plans: tuple[tuple[float, Plan], ...]
    lower_bound_seconds: float
    candidates: int
    costed: int
    regions: int
    settings: int
    deepest: int
    proven: bool


@dataclass(order=True, slots=True)
class Node:
    """A region with a bound of its own, or with that of the region it is part of where it has not been looked at."""

    bound: float
    order: int
    each: Field = dataclass_field(compare=False)
    region: Region = dataclass_field(compare=False)
    counts: Ints | None = dataclass_field(compare=False, default=None)
    own: Listing | None = dataclass_field(compare=False, default=None)


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
    run = _Run(problem, allowed, ceiling)
    all_fields = fields(problem.settings, problem.tables, problem.contexts[0].job.global_batch, problem.space)
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
        if node.order > len(roots):
            gaps.append(float(np.log(run.ceiling / min(node.bound, bound))))
        if node.own is None:
            if _look(run, node):
                heapq.heappush(heap, node)
            continue
        _attempt(run, node.each, node.region, node.bound, node.own)
        if node.bound >= run.goal or _closed(run, node):
            continue
        split = parts(node.each, node.region, node.bound, node.own, ceiling=run.ceiling, gap=problem.gap)
        if not split:
            bound = min(bound, node.bound)
            continue
        counts = node.own.counts_within(run.goal)
        for region in split:
            order += 1
            heapq.heappush(heap, Node(node.bound, order, node.each, region, counts))
    bound = min([bound, run.goal, *(node.bound for node in heap)])
    return Found(
        plans=tuple(sorted(run.best.values(), key=lambda item: item[0])),
        lower_bound_seconds=bound,
        candidates=run.candidates,
        costed=run.costed,
        regions=run.regions,
        settings=len(all_fields),
        deepest=max((each.depth for each in all_fields), default=0),
        proven=bound >= run.goal,
    )


def _scout(run: _Run, all_fields: Sequence[Field]) -> None:
    """Make plans of the settings that look best by a few compositions, so that the search begins with good ones."""
    seen: list[tuple[float, int, Region, Listing]] = []
    for place, each in enumerate(all_fields):
        counts = each.compositions(run.problem.space)
        counts = np.concatenate([counts[each.samples(counts)], *_hinted(run.problem.hints, counts)])
        for region in _scouted(each, run.problem.space):
            allowed = counts[usable(each.table, counts, region)]
            listing = Listing(each, region, allowed, run.ceiling, ordered=run.problem.effort.ordered)
            high = min([run.ceiling, *(1.02 * entry[0] for entry in seen if _kind(entry[2]) == _kind(region))])
            if each.quick < high and listing.limit(high) >= each.total:
                seconds, _ = shortest(listing.limit, each.total, each.quick, high)
                seen.append((seconds, place, region, listing))
    best: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for seconds, place, region, listing in sorted(seen, key=lambda entry: entry[:2]):
        best[_kind(region)] += 1
        if best[_kind(region)] <= SCOUTED:
            _attempt(run, all_fields[place], region, seconds, listing)


def _hinted(hints: Sequence[tuple[int, ...]], counts: Ints) -> list[Ints]:
    """Return the rows of `counts` that are hints."""
    return [counts[(counts == np.array(hint)).all(axis=1)] for hint in hints]


def _scouted(each: Field, space: Space) -> list[Region]:
    """Return the regions in which to make plans at once: on few units also those of so many replicas exactly, on
    all types and on each."""
    roots = each.roots(space)[:1]
    few = each.table.units.sum() <= FEW_UNITS and "dp" not in space.pins
    numbers = [2**power for power in range(FEW_UNITS.bit_length()) if few and roots and 2**power <= roots[0].most]
    units = each.table.units
    whole = [replace(root, fewest=number, most=number) for root in roots for number in numbers]
    pure = [replace(part, used=(kind,)) for part in whole for kind in np.flatnonzero(units >= part.fewest).tolist()]
    return roots + whole + pure


def _kind(region: Region) -> tuple[int, tuple[int, ...]]:
    return region.fewest, region.used


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
    gap; otherwise its bound may be raised."""
    assert node.own is not None, "it has been looked at"
    low, high = node.bound, run.goal
    for step in range(CLOSER):
        seconds = high if step == 0 else 0.5 * (low + high)
        found = closing(node.each, node.region, node.own, seconds)
        if isinstance(found, Draft):
            _offer(run, found)
        if found is False and step == 0:
            return True
        low, high = (seconds, high) if found is False else (low, seconds)
        high = min(high, run.goal)
        if high - low <= 0.3 * max(run.problem.gap, FINEST) * high:
            break
    node.bound = max(node.bound, low)
    return node.bound >= run.goal


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
    for order in run.problem.orders:
        plan = plan_of(contexts, run.problem.cluster, draft, rank_order=order)
        if check(plan) or not run.allowed(plan):
            continue
        seconds = fitting_seconds(contexts, plan, run.problem.known)
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
