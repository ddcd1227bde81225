"""The mixed search: branch and bound over settings, numbers of replicas and what is left after the pipeline.

Each region of a setting has a lower bound, from the integer program over its compositions. The region of least bound
comes first: plans are made of its solution, then it is split, until the best plan is within the gap of the least bound.
What the search returns is exact under the cost model; the bound holds for the space it declares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from shardwright.search.mixed.branch_and_bound.incumbents import Incumbents
from shardwright.search.mixed.branch_and_bound.tree import (
    Branched,
    Pruned,
    Rebounded,
    Step,
    TreeNode,
    Undecided,
    least_bound,
)
from shardwright.search.mixed.heuristics.attempts import Drafter, attempt, drafter, solve_within
from shardwright.search.mixed.heuristics.equal import equal_replicas
from shardwright.search.mixed.heuristics.side_by_side import side_by_side
from shardwright.search.mixed.master.answer import Infeasible, Solved
from shardwright.search.mixed.master.column_pool import ColumnPool, RuledOut
from shardwright.search.mixed.master.regions import Bounded, bounded, is_wide, parts, shortest
from shardwright.search.mixed.tables.columns import Table
from shardwright.search.mixed.tables.region import Region, usable
from shardwright.search.mixed.tables.settings import Setting
from shardwright.search.space.axes import Space
from shardwright.spec.cluster import Cluster

HELPS = 0.05  # part of the gap by which a split that helps raises the bound
SCOUTED = 3  # settings of which plans are made at once
FEW_UNITS = 32  # of which each number of replicas is looked at by itself
LESS_GOOD = 1.02  # times the best by a few compositions, beyond which a setting is not scouted
FAR = 1.5  # times the bound of a region, beyond which plans are made before its numbers of replicas are looked at
CLOSER = 9  # times that the integer program of a region is solved to raise its bound
CLOSE = 0.015  # part of the gap to which it is raised
FINEST = 0.003  # least gap that this aims at
LEAST_GAP = 2.5e-5  # below which a plan counts as the best


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundByTime:
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
    is part of none better than the ones before them; it has `ruled_out` what this need not look at again. Its
    integer program was `asked` for higher bounds, and may have a solution within `open_at` seconds. `whole` is the
    bound of the setting where units are few."""

    by: Drafter
    region: Region
    counts: Ints | None = None
    columns: ColumnPool | None = None
    before: float = 0.0
    idle: int = 0
    ruled_out: RuledOut = dataclass_field(default_factory=dict)
    asked: int = 0
    open_at: float = np.inf
    whole: Bounded | None = None


@dataclass(slots=True)
class _Run:
    problem: MixedProblem
    incumbents: Incumbents
    drafters: Sequence[Drafter]
    candidates: int = 0
    regions: int = 0
    gaps: list[float] = dataclass_field(default_factory=list)
    begun: set[Drafter] = dataclass_field(default_factory=set)

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


def search(problem: MixedProblem, incumbent: float, allowed: Callable[[Plan], bool]) -> FoundByTime:
    """Return the best plans that are `allowed`, and the least time that no plan of the space can beat; `incumbent` are
    the seconds to beat."""
    problem = replace(problem, gap=max(problem.gap, LEAST_GAP))
    found = instances(problem.settings, problem.tables, problem.contexts[0].job.global_batch, problem.space)
    longest = min(incumbent, HOPELESS * max((each.quick for each in found), default=np.inf))
    drafters = [drafter(each) for each in found]
    run = _Run(problem, Incumbents(problem.contexts, problem.cluster, problem.known, allowed, longest), drafters)
    for by, region in _scout(run, drafters, _whole):
        equal_replicas(by, region, run.incumbent, run.incumbents.offer)
    bound = least_bound(
        [(by.instance.quick, _Part(by, region)) for by in drafters for region in by.instance.roots(problem.space)],
        partial(_processed, run),
        cutoff=lambda: run.cutoff,
        spent=lambda _: problem.effort.spent(run.regions, run.gaps),
    )
    if bound < run.cutoff:
        _side_by_side(run, drafters)
    return FoundByTime(
        plans=tuple(sorted(run.incumbents.best.values(), key=lambda item: item[0])),
        lower_bound_seconds=bound,
        candidates=run.candidates,
        costed=run.incumbents.costed,
        deepest=max((each.depth for each in found), default=0),
    )


def _processed(run: _Run, node: TreeNode[_Part]) -> Step[_Part]:
    """Bound a region that has no bound of its own yet. Of one that has, make plans, and branch on its parts."""
    part = node.part
    if part.columns is None:
        return _bounded(run, node)
    if part.asked:
        return _raised(run, node)
    if _is_preliminary(part):
        if run.cutoff > FAR * node.bound:
            _begin(run, part)
        return _branched(run, node, part.columns, _first_parts(part, run.incumbent), part.idle)
    run.gaps.append(float(np.log(run.incumbent / node.proven)))
    effort, gap = run.problem.effort, run.problem.gap
    _begin(run, part)
    _attempt(run, part.by, part.region, node.bound, part.columns)
    near = 0.0 if _has_few_units(part.by.instance) else effort.near
    if node.bound >= run.cutoff or (node.bound >= near * run.cutoff and _excluded(run, part, run.cutoff)):
        return Pruned()
    idle = 0 if node.bound > part.before * (1.0 + HELPS * gap) else part.idle + 1
    split = parts(part.by.instance, part.region, run.incumbent) if idle < effort.idle else []
    if not split:
        return _raised(run, node)
    return _branched(run, node, part.columns, split, idle)


def _begin(run: _Run, part: _Part) -> None:
    """Make the first plans of numbers of replicas, and of the whole setting that a part is of. Where what is known is
    good, this waits for a number that may be better by all splits of its compositions: often there is none."""
    if part.whole is None:
        return
    if not run.begun:
        for _ in _scout(run, run.drafters, _numbered):
            pass
    if part.by not in run.begun:
        run.begun.add(part.by)
        _attempt(run, part.by, part.whole.columns.region, part.whole.seconds, part.whole.columns)


def _branched(
    run: _Run, node: TreeNode[_Part], columns: ColumnPool, split: Sequence[Region], idle: int
) -> Branched[_Part]:
    """Return the parts `split` of a region, with the compositions that its `columns` leave."""
    counts, by = columns.counts_within(run.cutoff), node.part.by
    child = partial(
        _Part, by, counts=counts, before=node.bound, idle=idle, ruled_out=columns.ruled_out, whole=node.part.whole
    )
    return Branched([(node.bound, child(region)) for region in split])


def _first_parts(part: _Part, incumbent: float) -> list[Region]:
    """Return the parts of a preliminary region. Several replicas of whatever types say as little as all: they are split
    at once."""
    split, instance = parts(part.by.instance, part.region, incumbent), part.by.instance
    return [piece for each in split for piece in (parts(instance, each, incumbent) if _says_little(each) else [each])]


def _says_little(region: Region) -> bool:
    return is_wide(region) and not region.used


def _is_preliminary(part: _Part) -> bool:
    """Return whether a region has too many numbers of replicas to say much of any: where units are few, each number has
    other compositions than the next one."""
    return _has_few_units(part.by.instance) and is_wide(part.region)


def _has_few_units(instance: Instance) -> bool:
    return int(instance.table.units.sum()) <= FEW_UNITS


def _bounded(run: _Run, node: TreeNode[_Part]) -> Step[_Part]:
    """Give a region its own bound."""
    part, instance = node.part, node.part.by.instance
    counts = instance.compositions(run.problem.space) if part.counts is None else part.counts
    if instance.quickest(part.region) >= run.cutoff:
        return Pruned()
    run.regions += 1
    run.candidates += len(counts)
    preliminary, is_root = _is_preliminary(part), part.counts is None
    found = bounded(
        instance,
        part.region,
        counts,
        known=node.bound,
        cutoff=run.cutoff,
        longest=run.incumbent,
        ruled_out=part.ruled_out,
        closely=_has_few_units(instance) and not preliminary,
        roughly=preliminary and not is_root,
    )
    if isinstance(found, Infeasible):
        return Pruned()
    whole = found if preliminary and is_root else part.whole
    return Rebounded(found.seconds, replace(part, columns=found.columns, whole=whole))


def _scout(
    run: _Run, drafters: Sequence[Drafter], regions: Callable[[Instance, Space], list[Region]]
) -> Iterator[tuple[Drafter, Region]]:
    """Make plans of those `regions` of the settings that look best by a few compositions, so that the search goes on
    with good ones. Yield these regions."""
    seen: list[tuple[float, int, Region, ColumnPool]] = []
    least: dict[tuple[int, tuple[int, ...]], float] = {}
    for place, by in enumerate(drafters):
        each = by.instance
        counts: Ints | None = None
        for region in regions(each, run.problem.space):
            kind = (region.fewest, region.used)
            high = min(run.incumbent, LESS_GOOD * least.get(kind, np.inf))
            if each.quickest(region) >= min(high, run.target):
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
        if best[region.fewest, region.used] <= SCOUTED and seconds < run.target:
            _attempt(run, drafters[place], region, seconds, columns)
            yield drafters[place], region


def _sampled(run: _Run, instance: Instance) -> Ints:
    """Return the compositions to scout with."""
    counts = instance.compositions(run.problem.space)
    return picked(counts, instance.samples(counts))


def _whole(instance: Instance, space: Space) -> list[Region]:
    return instance.roots(space)[:1]


def _numbered(instance: Instance, space: Space) -> list[Region]:
    """Return the regions of so many replicas exactly, on all types and on each, where there are few units."""
    roots, units = instance.roots(space)[:1], instance.table.units
    few = _has_few_units(instance) and "dp" not in space.pins
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
    side_by_side(open_ones, space, lambda: run.incumbent, run.incumbents.offer)


def _attempt(run: _Run, by: Drafter, region: Region, bound: float, columns: ColumnPool) -> None:
    attempt(by, region, bound, columns, run.incumbents.offer, lambda: run.incumbent, run.problem.gap)


def _raised(run: _Run, node: TreeNode[_Part]) -> Step[_Part]:
    """Raise the bound of a region that is not split any more by its integer program, a step at a time: others may come
    first then. Where another one is left at a lower bound, that is what is proven of all."""
    part, low, high = node.part, node.bound, min(node.part.open_at, run.cutoff)
    close = high - low <= CLOSE * max(run.problem.gap, FINEST) * high
    if close or part.asked == CLOSER or node.proven < low:
        return Undecided(low)
    part, middle = replace(part, asked=part.asked + 1), 0.5 * (low + high)
    if _excluded(run, part, middle):
        return Rebounded(middle, part)
    return Rebounded(low, replace(part, open_at=middle))


def _excluded(run: _Run, part: _Part, seconds: float) -> bool:
    """Solve the integer program of a region. Return whether it has no solution within `seconds`; offer one it has."""
    assert part.columns is not None, "it has been bounded"
    found = solve_within(part.by, part.region, part.columns, seconds)
    if isinstance(found, Solved):
        run.incumbents.offer(found.solution)
    return isinstance(found, Infeasible)
