"""The search over numbers of machines: the best plan by dollars, or by time within a budget, with a certificate.

A plan is charged for the machines that it occupies, so its value is known from their numbers and its seconds: what
remains is the least time on so many machines. Numbers of machines on which that is too long for a better value are
ruled out together, by the program over compositions (`bounds`). On those that are left regions are searched
(`_Question`), on the most promising first, until none of them can hold a plan that is better by more than the gap.

Unlike the search by time, which has to find good plans first, it asks the integer program of each region for the one
time that matters, and makes plans only where that does not say no.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from shardwright.arrays import Ints
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.mixed.bounds.instance import instances
from shardwright.search.mixed.branch_and_bound.run import NO_PROOF, MixedProblem, MixedResult, spent_of
from shardwright.search.mixed.branch_and_bound.tree import (
    Branched,
    Pruned,
    Rebounded,
    Step,
    TreeNode,
    Undecided,
    least_bound,
)
from shardwright.search.mixed.dollars.bounds import Start, groups, least_dollars, least_seconds, roots, screened
from shardwright.search.mixed.dollars.ledger import Ledger, by_time, offer, quick_seconds, share
from shardwright.search.mixed.dollars.machines import Bill, Boxes, all_boxes, boxes
from shardwright.search.mixed.drafts.draft import Draft
from shardwright.search.mixed.heuristics.attempts import Drafter, attempt, drafter, solve_within
from shardwright.search.mixed.master.answer import Infeasible, Solved
from shardwright.search.mixed.master.column_pool import ColumnPool
from shardwright.search.mixed.master.regions import bounded, parts
from shardwright.search.mixed.tables.region import Region
from shardwright.search.space.axes import Space

GUESSES = 6  # machines on which a first plan is looked for
LIKELY = 1.25  # times the least quick bound: settings of a first guess
VERY_LONG = 100.0  # times the quick bound: seconds that no plan is likely to take
PROGRAMS = 5  # times the regions of the effort: programs of boxes, at most
MONEY = 2  # times the regions of the effort: programs with a row for money, at most
MOST_REGIONS = 24  # looked at for one setting on the same machines


Part = tuple[Region, Ints]  # with the compositions that it may have


@record(kw_only=False)
class _Part:
    """One box with the columns of its settings, by their place. `bounded` says whether it has a bound of its own."""

    box: Boxes
    pools: dict[int, tuple[ColumnPool, ...]]
    bounded: bool = False


def search(
    problem: MixedProblem,
    bill: Bill,
    incumbent: float,
    allowed: Callable[[Plan], bool],
    costed: Callable[[Plan], Plan],
    value: Callable[[Plan], float | None],
) -> MixedResult:
    """Return the best plans that are `allowed`, and the least value that no plan of the space beats; `incumbent` is the
    value to beat. `costed` returns a plan with its prediction, `value` the value of such a plan, None where it does not
    keep the limits."""
    found = instances(problem.settings, problem.tables, problem.contexts[0].job.global_batch, problem.space)
    per_machine = np.array([instance.table.units // bill.machines for instance in found]).reshape(
        -1, len(bill.machines)
    )
    run = Ledger(
        problem, bill, allowed, costed, value, incumbent, [drafter(instance) for instance in found], per_machine
    )
    bound = _least_value(run, all_boxes(bill)) if found else np.inf
    return MixedResult(
        plans=tuple(sorted(run.best.values(), key=lambda item: item[0])),
        bound=min(bound, run.cutoff),
        candidates=run.candidates,
        costed=run.costed,
        deepest=max((instance.depth for instance in found), default=0),
    )


def _least_value(run: Ledger, boxes: Boxes) -> float:
    """Make plans. Return the value that no plan beats: with each number of machines looked at where there are not too
    many of them."""
    each_number = bool((boxes.low == boxes.high).all())
    if not each_number or not np.isfinite(run.incumbent):
        _guess(run, boxes)
    if not np.isfinite(run.incumbent):
        values = boxes.slope * quick_seconds(run, boxes.high).min(axis=0)
        run.incumbent = VERY_LONG * float(values[np.isfinite(values)].max(initial=0.0))
    if each_number:
        return _searched(run, _left(run, boxes))
    if run.bill.job.objective == "cost":
        return _in_money(run, boxes)
    return by_time(run, run.problem, run.incumbent)


def _guess(run: Ledger, found: Boxes) -> None:
    """Make plans on the machines that most likely have one of some value, so that the search begins with a good one:
    of any value first, then of a lower one, or of a higher one where there was none."""
    single = boxes(run.bill, found.high, found.high)
    quick = quick_seconds(run, found.high)
    least, dollars = quick.min(axis=0), run.bill.per_second(found.high)
    low = float(np.where(least <= single.longest, least * single.slope, np.inf).min())
    if not np.isfinite(low):
        return
    wanted, tried = float(np.sqrt(low * run.incumbent)), ~np.isfinite(least)
    for _ in range(GUESSES):
        seconds = np.minimum(wanted / single.slope, np.minimum(single.longest, VERY_LONG * least))
        slack = np.divide(seconds, least, out=np.zeros_like(least), where=~tried)
        row = int(np.lexsort((dollars, slack.round(6)))[-1])
        if slack[row] < 1.0:
            break
        tried[row] = True
        _made(run, single, row, np.flatnonzero(quick[:, row] <= LIKELY * least[row]))
        if not np.isfinite(run.incumbent):
            break
        low = low if run.incumbent <= wanted else wanted
        wanted = float(np.sqrt(low * run.incumbent))


def _made(run: Ledger, boxes: Boxes, row: int, places: Ints) -> None:
    """Make fast plans on the machines of a box and keep them."""
    drafters = ((run.drafters[place].instance, run.per_machine[place]) for place in places.tolist())
    chosen = [maker.on_units(boxes.high[row] * per_machine) for maker, per_machine in drafters]
    chosen = [maker for maker in chosen if roots(maker, run.problem.space)]
    problem = replace(
        run.problem,
        settings=tuple(maker.setting for maker in chosen),
        tables=tuple(maker.table for maker in chosen),
        effort=NO_PROOF,
    )
    quick = min((maker.quick for maker in chosen), default=0.0)
    longest = min(run.incumbent / float(boxes.slope[row]), float(boxes.longest[row]), VERY_LONG * quick)
    by_time(run, problem, longest)


def _left(run: Ledger, boxes: Boxes) -> list[tuple[float, _Part]]:
    """Return the boxes that may hold a better plan, with the programs of the settings that may have it."""
    pools: list[dict[int, tuple[ColumnPool, ...]]] = [{} for _ in range(len(boxes))]
    longest, quick = run.seconds(boxes), quick_seconds(run, boxes.high)
    for place, by in enumerate(run.drafters):
        suited = ((boxes.high == 0) | (run.per_machine[place] > 0)).all(axis=1)
        rows = np.flatnonzero(suited & (quick[place] < longest))
        if not len(rows):
            continue
        units = boxes.high[rows] * run.per_machine[place]
        for group in groups(by.instance, run.problem.space, units, longest[rows], share(run, place)):
            run.candidates += sum(len(pool.unlisted) + len(pool.listed.counts) for pool in group.pools)
            for row in rows[group.rows[screened(group, units, longest[rows])]].tolist():
                pools[row][place] = group.pools
    bounds = coarse(
        np.where([bool(pools_of_setting) for pools_of_setting in pools], boxes.slope * quick.min(axis=0), np.inf)
    )
    return [
        (float(bounds[row]), _Part(boxes.take(np.array([row])), pools[row]))
        for row in np.flatnonzero(np.isfinite(bounds)).tolist()
    ]


def _searched(run: Ledger, found: list[tuple[float, _Part]]) -> float:
    """Search the boxes, the most promising first. Return what no plan in them beats."""
    most, programs = run.problem.effort.regions, 0

    def processed(node: TreeNode[_Part]) -> Step[_Part]:
        nonlocal programs
        part = node.part
        if not part.bounded:
            programs += len(part.pools)
            return _bounded(run, node)
        seconds = min(_decided(run, part.box, place) for place in part.pools)
        if seconds >= part.box.longest[0]:
            return Pruned()
        return Undecided(max(node.bound, float(part.box.slope[0]) * seconds))

    return least_bound(
        found,
        processed,
        cutoff=lambda: run.cutoff,
        spent=lambda _: max(spent_of(programs, PROGRAMS * most), spent_of(run.regions, most)),
    )


def _bounded(run: Ledger, node: TreeNode[_Part]) -> Step[_Part]:
    """Give a box its own bound, and leave it the columns of settings that may have a better plan."""
    box = node.part.box
    high, quick = box.high[0], quick_seconds(run, box.high)[:, 0]
    longest = float(run.seconds(box)[0])
    seconds = {
        place: least_seconds(pool, high * run.per_machine[place], float(quick[place]), longest)
        for place, pool in node.part.pools.items()
        if quick[place] < longest
    }
    pools = {place: node.part.pools[place] for place, least in seconds.items() if np.isfinite(least)}
    if not pools:
        return Pruned()
    bound = max(node.bound, float(box.slope[0]) * min(seconds.values()))
    return Rebounded(bound, _Part(box, pools, bounded=True))


def _in_money(run: Ledger, boxes: Boxes) -> float:
    """Return the dollars that no plan costs less than and keeps the limits, by parts of machines."""
    starts = []
    for by, per_machine in zip(run.drafters, run.per_machine, strict=True):
        per_unit = run.bill.part / np.maximum(per_machine, 1)
        starts += [Start(by.instance, region, per_unit) for region in roots(by.instance, run.problem.space)]
    longest = min(float(boxes.longest.max()), run.cutoff / float(run.bill.dollars.min()))
    return least_dollars(starts, run.problem.space, run.cutoff, longest, MONEY * run.problem.effort.regions)


def _decided(run: Ledger, box: Boxes, place: int) -> float:
    """Return the seconds that no plan of a setting in a box beats, or those that are too long; keep plans made on the
    way."""
    slope, longest = float(box.slope[0]), float(box.longest[0])
    by = run.drafters[place].on_units(box.high[0] * run.per_machine[place])
    seconds, looked = decided(
        by,
        run.problem.space,
        roots(by.instance, run.problem.space),
        tuple(np.flatnonzero(box.high[0]).tolist()),
        lambda: min(run.cutoff / slope, longest),
        run.problem.gap,
        lambda draft: offer(run, draft, min(run.incumbent / slope, longest)),
    )
    run.regions += looked
    return seconds


@dataclass(slots=True)
class _Question:
    by: Drafter
    used: tuple[int, ...]
    cutoff: Callable[[], float]
    gap: float
    offer: Callable[[Draft], float]
    looked: int = 0


def decided(
    by: Drafter,
    space: Space,
    roots: list[Region],
    used: tuple[int, ...],
    cutoff: Callable[[], float],
    gap: float,
    offer: Callable[[Draft], float],
) -> tuple[float, int]:
    """Return seconds, `cutoff` at most, that no plan of an instance on all of the types `used` beats, and how many
    regions were looked at. Plans that may take less than `cutoff` are offered, which may lower it; an offer returns the
    exact seconds."""
    counts = by.instance.compositions(space)
    run = _Question(by, used, cutoff, gap, offer)
    bound = least_bound(
        [(by.instance.quickest(root), (root, counts)) for root in roots],
        partial(_processed, run),
        cutoff=cutoff,
        spent=lambda processed: spent_of(processed, MOST_REGIONS),
    )
    return bound, run.looked


def _processed(run: _Question, node: TreeNode[Part]) -> Step[Part]:
    """Bound a region, ask its integer program for a plan within the cutoff, and branch on its parts."""
    run.looked += 1
    (region, counts), instance = node.part, run.by.instance
    found = bounded(instance, region, counts, known=node.bound, cutoff=run.cutoff(), longest=run.cutoff())
    if isinstance(found, Infeasible):
        return Pruned()
    answer = solve_within(run.by, region, found.columns, run.cutoff())
    if isinstance(answer, Infeasible):
        return Pruned()
    if isinstance(answer, Solved):
        run.offer(answer.solution)
    split = [part for part in parts(instance, region, run.cutoff()) if part.used in ((), run.used)]
    if not split:
        attempt(run.by, region, found.seconds, found.columns, run.offer, run.cutoff, run.gap)
        return Undecided(found.seconds)
    rest = found.columns.counts_within(run.cutoff())
    return Branched([(max(found.seconds, instance.quickest(part)), (part, rest)) for part in split])
