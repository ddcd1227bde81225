"""Plans made of a region's bound: solutions of its program, with what is learned of their compositions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwright.cost.strategies import Floats, Ints
from shardwright.search.mixed.bounds.compositions import Columns, micro_batches
from shardwright.search.mixed.drafts.draft import Draft
from shardwright.search.mixed.field import Field
from shardwright.search.mixed.master.column_pool import Listing
from shardwright.search.mixed.master.program import CLOSE, Choice
from shardwright.search.mixed.master.regions import PRECISION, shortest
from shardwright.search.mixed.tables.region import Region, asked_for

ROUNDS = 8  # solutions of a region that are made into plans
IDLE = 2  # of them in a row that are no better than the best plan
ENOUGH = 3  # compositions that were tried, to tell from them how slow others may be
SOME = 120  # compositions that plans are made of
TIGHTENED, SOLVED = 20, 3  # times that the relaxation and the program are solved with tighter compositions
WIDEST = 1.6  # times of the bound, at which compositions are taken that plans are made of


def attempt(
    each: Field,
    region: Region,
    low: float,
    of: Listing,
    offer: Callable[[Draft], float],
    ceiling: Callable[[], float],
    gap: float,
) -> None:
    """Make plans of a region with the bound `low` and `offer` them, which returns their exact seconds.

    Compositions that turned out slower than their bound count as that much slower when the program is solved again, so
    that the next solution is of others, or right about these."""
    top = min(ceiling(), WIDEST * low)
    if of.limit(top) < each.total - CLOSE:
        top = ceiling()
    of.widen(top, SOME)
    found, part = of.within(top)
    idle = 0
    for _ in range(ROUNDS):
        if idle == IDLE:
            return
        slower = _slowness(each, region, found)

        def reached(seconds: float, slower: Floats = slower) -> float:
            return part.limit(micro_batches(found, seconds / slower))[0]

        end = min(top, ceiling())
        if reached(end) < each.total - CLOSE:
            return
        end = shortest(reached, each.total, low, end)[1]
        at = min(end * (1.0 + 0.3 * gap + PRECISION), ceiling()) / slower
        choice = part.dive(micro_batches(found, at), each.total)
        if not len(choice.chosen):
            return
        draft = _draft(each, region, found, choice, micro_batches(found, at), at)
        idle += 1
        if draft is not None:
            idle = 0 if draft.seconds < ceiling() else idle
            surprise = offer(draft) / max(line.seconds + line.after for line, _, _ in draft.replicas)
            for row in choice.chosen:
                each.slower[tuple(found.counts[row].tolist()), region] *= max(surprise, 1.0)


def closing(each: Field, region: Region, of: Listing, goal: float) -> Draft | bool | None:
    """Return the plan that the integer program makes of a region within `goal` seconds, None if that fits nowhere, and
    False if there is no solution. The compositions of solutions are looked at split by split before they count."""
    for _ in range(TIGHTENED):
        if not of.reaches_all(goal):
            return False
        if not of.tighten(sorted(of.program.relaxed.amounts()), goal):
            break
    for _ in range(SOLVED):
        of.reaches_all(goal)
        complete = of.widen(goal, SOME)
        sizes = of.sizes(goal)
        choice = of.program.solve(sizes, each.total, asked_for(each.table, of.found.counts, region))
        if choice.bound < each.total - CLOSE:
            return False if complete else None
        if not of.tighten(choice.chosen.tolist(), goal):
            return _draft(each, region, of.found, choice, sizes, np.full(len(of.found.counts), goal))
    return None


def _slowness(each: Field, region: Region, found: Columns) -> Floats:
    """Return how much slower than their bound compositions turned out, [N]; those not tried yet as much as half of the
    others did."""
    known = {counts: ratio for (counts, where), ratio in each.slower.items() if where == region}
    tried = [ratio for ratio in known.values() if np.isfinite(ratio)]
    slower = np.full(len(found.counts), float(np.median(tried)) if len(tried) >= ENOUGH else 1.0)
    for counts, ratio in known.items():
        slower[(found.counts == counts).all(axis=1)] = ratio
    return slower


def _draft(each: Field, region: Region, found: Columns, choice: Choice, sizes: Ints, seconds: Floats) -> Draft | None:
    """Return the plan of a solution, if there is one, and remember how slow its compositions are."""
    if not len(choice.chosen):
        return None
    sizes = sizes[choice.chosen]
    chosen = [
        (tuple(found.counts[row].tolist()), int(number), int(size))
        for row, number, size in zip(choice.chosen, choice.copies, sizes, strict=True)
    ]
    made = each.workshop.lines_of(chosen, each.total)
    for row, (counts, _, _), line in zip(choice.chosen, chosen, made, strict=True):
        took = np.inf if line is None else line.seconds + line.after
        each.slower[counts, region] = max(took / float(seconds[row]), 1.0)
    return each.workshop.draft(chosen, each.total)
