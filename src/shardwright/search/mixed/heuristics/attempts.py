"""Plans made of a region's bound: solutions of its program, with what is learned of their compositions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.search.mixed.bounds.compositions import Compositions, micro_batches
from shardwright.search.mixed.bounds.instance import Instance
from shardwright.search.mixed.drafts.draft import Draft
from shardwright.search.mixed.drafts.realise import Workshop
from shardwright.search.mixed.master.answer import Infeasible, Open, Solved
from shardwright.search.mixed.master.column_pool import ColumnPool
from shardwright.search.mixed.master.program import CLOSE, Selection
from shardwright.search.mixed.master.regions import PRECISION, shortest
from shardwright.search.mixed.tables.region import Region, asked_for

ROUNDS = 8  # solutions of a region that are made into plans
IDLE = 2  # of them in a row that are plans no better than the best one; of what is no plan the next solution has less
ENOUGH = 3  # compositions that were tried, to tell from them how slow others may be
SOME = 120  # compositions that plans are made of
TIGHTENED, SOLVED = 20, 3  # times that the relaxation and the program are solved with tighter compositions
MANY = 40  # compositions in a program, of which solutions are not looked at one after the other
WIDEST = 1.6  # times of the bound, at which compositions are taken that plans are made of


@dataclass(slots=True, eq=False)
class Drafter:
    """Makes drafts of an instance in its workshop; `slower` is by how much compositions turned out slower than their
    bound, by region."""

    instance: Instance
    workshop: Workshop
    slower: dict[tuple[tuple[int, ...], Region], float] = field(default_factory=dict)

    def on_units(self, units: Ints) -> Drafter:
        """Return one for the instance on so many units of each type [G], in the same workshop."""
        return Drafter(self.instance.on_units(units), self.workshop)

    def anew(self) -> Drafter:
        """Return one that has learned nothing yet, in the same workshop."""
        return Drafter(replace(self.instance, known={}), self.workshop)


def drafter(instance: Instance) -> Drafter:
    """Return a drafter that has not made anything yet."""
    return Drafter(instance, workshop_of(instance, instance.modes))


def workshop_of(instance: Instance, modes: tuple[int, ...]) -> Workshop:
    """Return a workshop for plans of an instance with some of its recomputations."""
    return Workshop(instance.setting, instance.table, instance.layers, modes, instance.ends)


def attempt(
    by: Drafter,
    region: Region,
    low: float,
    pool: ColumnPool,
    offer: Callable[[Draft], float],
    incumbent: Callable[[], float],
    gap: float,
) -> None:
    """Make plans of a region with the bound `low` and `offer` them, which returns their exact seconds.

    Compositions that turned out slower than their bound count as that much slower when the program is solved again, so
    that the next solution is of others, or right about these."""
    instance = by.instance
    top = min(incumbent(), WIDEST * low)
    if pool.limit(top) < instance.total - CLOSE:
        top = incumbent()
    pool.widen(top, SOME)
    columns, part = pool.within(top)
    idle = 0
    for _ in range(ROUNDS):
        if idle == IDLE:
            return
        slower = _slowness(by, region, columns)

        def reached(seconds: float, slower: Floats = slower) -> float:
            return part.relaxed(micro_batches(columns, seconds / slower)).value

        end = min(top, incumbent())
        if reached(end) < instance.total - CLOSE:
            return
        end = shortest(reached, instance.total, low, end)[1]
        at = min(end * (1.0 + 0.3 * gap + PRECISION), incumbent()) / slower
        choice = part.dive(micro_batches(columns, at), instance.total)
        if not len(choice.chosen):
            return
        draft = _draft(by, region, columns, choice, micro_batches(columns, at), at)
        if draft is not None:
            idle = 0 if draft.seconds < incumbent() else idle + 1
            surprise = offer(draft) / max(line.seconds + line.after for line, _, _ in draft.replicas)
            for row in choice.chosen:
                by.slower[tuple(columns.counts[row].tolist()), region] *= max(surprise, 1.0)


def solve_within(by: Drafter, region: Region, pool: ColumnPool, cutoff: float) -> Solved[Draft] | Infeasible | Open:
    """Return the plan that the integer program makes of a region within `cutoff` seconds, if it has few enough
    compositions to prove anything. Those of solutions are looked at split by split before they count."""
    instance = by.instance
    if pool.excludes(cutoff):
        return Infeasible()
    for _ in range(TIGHTENED):
        relaxed = pool.generated(cutoff)
        if not pool.suffices(relaxed):
            return Infeasible()
        if not pool.tighten(np.array(sorted(relaxed.amounts), dtype=np.int64), cutoff):
            break
    for _ in range(SOLVED):
        pool.generated(cutoff)
        if not pool.widen(cutoff, SOME):
            return Open()
        sizes = pool.sizes(cutoff)
        answer = pool.program.solve(sizes, instance.total, asked_for(instance.table, pool.listed.counts, region))
        if not isinstance(answer, Solved):
            return answer
        if not pool.tighten(answer.solution.chosen, cutoff):
            draft = _draft(by, region, pool.listed, answer.solution, sizes, np.full(len(pool.listed.counts), cutoff))
            return Open() if draft is None else Solved(draft)
        if answer.solution.tried > MANY:
            break
    return Open()


def _slowness(by: Drafter, region: Region, compositions: Compositions) -> Floats:
    """Return how much slower than their bound compositions turned out, [N]; those not tried yet as much as half of the
    others did."""
    known = {counts: ratio for (counts, where), ratio in by.slower.items() if where == region}
    tried = [ratio for ratio in known.values() if np.isfinite(ratio)]
    slower = np.full(len(compositions.counts), float(np.median(tried)) if len(tried) >= ENOUGH else 1.0)
    for counts, ratio in known.items():
        slower[(compositions.counts == counts).all(axis=1)] = ratio
    return slower


def _draft(
    by: Drafter, region: Region, compositions: Compositions, choice: Selection, sizes: Ints, seconds: Floats
) -> Draft | None:
    """Return the plan of a solution, if there is one, and remember how slow its compositions are."""
    if not len(choice.chosen):
        return None
    sizes = sizes[choice.chosen]
    chosen = [
        (tuple(compositions.counts[row].tolist()), int(number), int(size))
        for row, number, size in zip(choice.chosen, choice.copies, sizes, strict=True)
    ]
    made = by.workshop.lines_of(chosen, by.instance.total)
    for row, (counts, _, _), line in zip(choice.chosen, chosen, made, strict=True):
        took = np.inf if line is None else line.seconds + line.after
        by.slower[counts, region] = max(took / float(seconds[row]), 1.0)
    return by.workshop.draft(chosen, by.instance.total)
