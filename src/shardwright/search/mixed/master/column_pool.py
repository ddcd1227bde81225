"""The program of a region with the compositions that matter: some at first, the rest as its prices ask for them.

A composition that is not listed counts as one that no solution has, and prices say whether that is so (`possible`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from shardwright.arrays import Bools, Floats, Ints, distinct_rows, picked
from shardwright.rounding import coarse, weighed
from shardwright.search.mixed.bounds.compositions import Compositions, alone, columns, micro_batches
from shardwright.search.mixed.bounds.instance import Instance
from shardwright.search.mixed.master.program import CLOSE, Limits, MasterProblem, master_problem
from shardwright.search.mixed.master.relaxation import Relaxed
from shardwright.search.mixed.subproblem.eligible import needed, possible, that_fit
from shardwright.search.mixed.subproblem.exact import least_by_splits, least_of_listed
from shardwright.search.mixed.tables.region import Region

FIRST = 200  # compositions that are all listed at first; of more, samples
MORE = 120  # listed at a time
LOOKS = 8  # at splits, to prove that there is no solution


# Compositions with seconds and micro-batches that no split of them finishes in a region, nor in a part of it.
RuledOut = Mapping[tuple[int, ...], tuple[tuple[float, int], ...]]
NOTHING: RuledOut = MappingProxyType({})


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class _Marks:
    """Rows with numbers of micro-batches and seconds, [K] each."""

    rows: Ints = field(default_factory=_none)
    sizes: Ints = field(default_factory=_none)
    seconds: Floats = field(default_factory=lambda: np.zeros(0))

    def add(self, rows: Iterable[int], sizes: Iterable[int], seconds: Iterable[float]) -> None:
        self.rows, self.sizes = np.append(self.rows, np.array(rows)), np.append(self.sizes, np.array(sizes))
        self.seconds = np.append(self.seconds, np.array(seconds))


def limits_of(instance: Instance, region: Region) -> Limits:
    """Return the limits of a region's plans."""
    return Limits(
        units=instance.table.units,
        fewest=region.fewest,
        most=region.most,
        degrees=instance.setting.tp,
        fewest_gpus=region.gpus,
        most_gpus=region.most_gpus,
    )


class ColumnPool:
    """The compositions of a region that are `listed`, their program, and those that are not, `unlisted` [N, G].

    Where micro-batches in flight limit a stage, a composition with fewer micro-batches than stages can hold more: it
    has a second row for that. `narrow` [N, G] are listed compositions whose second row no solution asked for yet. If
    `ordered`, compositions are bounded by each order of their types where there are few. What was `ruled_out` for a
    region of which this is a part holds here, too.
    """

    def __init__(
        self,
        instance: Instance,
        region: Region,
        counts: Ints,
        longest: float,
        *,
        ordered: bool = True,
        ruled_out: RuledOut = NOTHING,
    ) -> None:
        self.instance, self.region, self.longest = instance, region, longest
        self.ordered = ordered
        self.listed = that_fit(instance, region, alone(instance.table, instance.layers, region))
        self.unlisted = picked(counts, np.argsort(counts.sum(axis=1), kind="stable"))
        self.narrow = counts[:0]
        self.ruled_out = dict(ruled_out)
        self.possible, self.too_many = _Marks(), _Marks()  # by some split in these seconds or more; by none in less
        self.told = _Marks()  # what is possible by splits looked at one by one, too
        self.program = master_problem(self.listed.counts, limits_of(instance, region))
        self.capacity = instance.capacity(region, longest, few=False)
        self._list(instance.samples(self.unlisted) if len(counts) > FIRST else np.ones(len(counts), dtype=bool))

    @property
    def total(self) -> int:
        return self.instance.total

    def sizes(self, seconds: float) -> Ints:
        """Return the most micro-batches that each listed composition finishes within `seconds`."""
        sizes = micro_batches(self.listed, seconds)
        known = self.too_many.seconds >= seconds
        np.minimum.at(sizes, self.too_many.rows[known], self.too_many.sizes[known] - 1)
        return sizes

    def _surely(self, marks: _Marks, seconds: float) -> Ints:
        """Return how many micro-batches some split of each listed composition finishes within `seconds` by `marks`."""
        sizes, known = np.zeros(len(self.listed.stages), dtype=np.int64), marks.seconds <= seconds
        np.maximum.at(sizes, marks.rows[known], marks.sizes[known])
        return sizes

    def limit(self, seconds: float) -> float:
        """Return the most micro-batches that the listed compositions finish, in whatever part of a replica."""
        return self.relaxed(seconds).value

    def relaxed(self, seconds: float) -> Relaxed:
        """Return the optimum of the relaxation over the listed compositions within `seconds`."""
        return self.program.relaxed(self.sizes(seconds))

    def generated(self, seconds: float) -> Relaxed:
        """Generate columns until those listed finish all micro-batches within `seconds`, or until no composition could
        raise the optimum. Return the optimum, in that case the one over all compositions."""
        while True:
            relaxed = self.relaxed(seconds)
            if self.suffices(relaxed) or not self.extend(seconds, relaxed.prices):
                return relaxed

    def suffices(self, relaxed: Relaxed) -> bool:
        """Return whether an optimum finishes all micro-batches."""
        return relaxed.value >= self.total - CLOSE

    def reaches_all(self, seconds: float) -> bool:
        """Return whether all micro-batches may be finished within `seconds`; where not, that is proven."""
        return self.suffices(self.generated(seconds))

    def extend(self, seconds: float, prices: Floats) -> bool:
        """List compositions that could raise the optimum within `seconds`, which has the `prices`. Return whether there
        are any: if not, it is that of all compositions."""
        return self._list_narrow(prices, 0.0) | self._list_some(self._in_solutions(seconds, prices, 0.0), prices)

    def widen(self, seconds: float, most: int) -> bool:
        """List the compositions that can be in a solution within `seconds`, at most the `most` promising. Return
        whether these are all."""
        relaxed = self.relaxed(seconds)
        slack = max(relaxed.value - self.total, 0.0)
        chosen = self._in_solutions(seconds, relaxed.prices, slack)
        self._list_narrow(relaxed.prices, slack)
        complete = bool(chosen.sum() <= most)
        self._list_some(chosen, relaxed.prices, most)
        self._list_narrow(relaxed.prices, slack)
        return complete

    def excludes(self, seconds: float) -> bool:
        """Return whether it is proven that no solution finishes all micro-batches within `seconds`.

        Prices that value all units at a little less than the micro-batches there are prove it if no composition
        finishes more than it costs. So splits are looked at for just as many of all compositions that may, if these
        are not too many; of those that can, prices have to rise."""
        for _ in range(LOOKS if len(self.listed.stages) <= FIRST else 0):
            relaxed = self.generated(seconds)
            if not self.suffices(relaxed):
                return True
            surely, sizes = self._surely(self.possible, seconds), self.sizes(seconds)
            if self.suffices(self.program.relaxed(surely)):
                return False
            prices = relaxed.prices * ((self.total - 2.0 * CLOSE) / relaxed.value)
            wanted = np.floor(weighed(self.listed.counts, prices[:-1]) + prices[-1] + CLOSE).astype(np.int64) + 1
            wanted = np.maximum(np.where(surely >= wanted, surely + (sizes - surely + 1) // 2, wanted), 1)
            rows = np.flatnonzero((sizes >= wanted) & (surely < wanted) & (self.listed.stages > 1))
            if not len(rows):
                return False
            rows = rows[np.argsort(relaxed.reduced_costs[rows], kind="stable")]
            self._look(rows, wanted[rows], seconds)
        return False

    def tighten(self, rows: Ints, seconds: float) -> bool:
        """Look at all splits of the compositions at `rows`, and lower what they finish within `seconds` by one where no
        split does it: this holds for shorter times, too. Return whether that was so for any."""
        sizes, surely = self.sizes(seconds), self._surely(self.told, seconds)
        rows = rows[(sizes[rows] > surely[rows]) & (self.listed.stages[rows] > 1)]
        return bool(len(rows)) and self._look(rows, sizes[rows], seconds, one_by_one=True)

    def _look(self, rows: Ints, sizes: Ints, seconds: float, *, one_by_one: bool = False) -> bool:
        """Look at all splits of the compositions at `rows` for whether they finish so many micro-batches within
        `seconds`, `one_by_one` where they are few, and remember it. Return whether some do not."""
        instance, columns = self.instance, self.listed.take(rows)
        least = least_by_splits(instance.table, instance.layers, self.region, columns, sizes, seconds, total=self.total)
        for row in np.flatnonzero(np.isfinite(least)) if one_by_one else ():
            column, size = columns.take(np.array([row])), int(sizes[row])
            listed = least_of_listed(instance.table, instance.layers, self.region, column, size, seconds)
            least[row] = max(least[row], listed)
        can = np.isfinite(least)
        for marks in (self.possible, self.told) if one_by_one else (self.possible,):
            marks.add(rows[can], sizes[can], np.where(least[can] > 0.0, least[can], seconds))
        for row, size in zip(rows[~can].tolist(), sizes[~can].tolist(), strict=True):
            self._rule_out(tuple(self.listed.counts[row].tolist()), seconds, size)
        return not can.all()

    def _rule_out(self, counts: tuple[int, ...], seconds: float, size: int) -> None:
        """Remember that no split of a composition finishes `size` micro-batches within `seconds`."""
        self.ruled_out[counts] = (*self.ruled_out.get(counts, ()), (seconds, size))
        rows = np.flatnonzero((self.listed.counts == np.array(counts)).all(axis=1))
        self.too_many.add(rows, np.full(len(rows), size), np.full(len(rows), seconds))

    def within(self, seconds: float) -> tuple[Compositions, MasterProblem]:
        """Return the listed compositions that can be in a solution within `seconds`, with their program."""
        relaxed = self.relaxed(seconds)
        columns = self.listed.take(np.flatnonzero(relaxed.reduced_costs <= relaxed.value - self.total + CLOSE))
        return columns, master_problem(columns.counts, self.program.limits)

    def counts_within(self, seconds: float) -> Ints:
        """Return the compositions of two stages or more, listed or not, that can be in a solution, [N, G]."""
        relaxed = self.relaxed(seconds)
        slack = max(relaxed.value - self.total, 0.0)
        kept = picked(self.listed.counts, (relaxed.reduced_costs <= slack + CLOSE) & (self.listed.stages > 1))
        again = picked(self.narrow, needed(self.narrow, relaxed.prices, slack) < self.narrow.sum(axis=1))
        rest = picked(self.unlisted, self._in_solutions(seconds, relaxed.prices, slack))
        return distinct_rows(np.concatenate([kept, again, rest]))

    def _in_solutions(self, seconds: float, prices: Floats, slack: float) -> Bools:
        """Return which of the compositions that are not listed can be in a solution within `seconds` at `prices`."""
        instance, chosen = self.instance, np.zeros(len(self.unlisted), dtype=bool)
        least = needed(self.unlisted, prices, slack)
        few = least <= self.unlisted.sum(axis=1)
        for rows in (np.flatnonzero(few & (least <= self.total)), np.flatnonzero(~few & (least <= self.total))):
            if len(rows):
                table = instance.capacity(self.region, self.longest, few=True) if few[rows[0]] else self.capacity
                counts, wanted = picked(self.unlisted, rows), least[rows]
                chosen[rows[possible(instance.table, instance.layers, table, counts, self.region, wanted, seconds)]] = (
                    True
                )
        return chosen

    def _list_some(self, chosen: Bools, prices: Floats, most: int = MORE) -> bool:
        """List some of the compositions chosen, those that cost least for their speed at `prices`. Return whether there
        are any."""
        rows = np.flatnonzero(chosen)
        if len(rows) > most:
            speed = weighed(self.unlisted[rows], 1.0 / self.instance.layers.seconds)
            cost = weighed(self.unlisted[rows], prices[:-1]) + prices[-1] + self.unlisted[rows].sum(axis=1)
            chosen = np.zeros_like(chosen)
            chosen[rows[np.argsort(coarse(cost / speed), kind="stable")[:most]]] = True
        self._list(chosen)
        return len(rows) > 0

    def _list(self, chosen: Bools) -> None:
        """List rows that are not, if any is `chosen`."""
        if not chosen.any():
            return
        counts, instance, steady = picked(self.unlisted, chosen), self.instance, self.capacity.steady
        self.unlisted = picked(self.unlisted, ~chosen)
        more = columns(
            instance.table, instance.layers, self.capacity, counts, self.region, few=False, ordered=self.ordered
        )
        self._join(replace(more, fewest=np.ones_like(more.fewest)) if steady else more)
        if not steady:
            self.narrow = np.concatenate([self.narrow, counts])

    def _list_narrow(self, prices: Floats, slack: float) -> bool:
        """List second rows that `prices` ask for. Return whether there are any."""
        asked = needed(self.narrow, prices, slack) < self.narrow.sum(axis=1)
        if not asked.any():
            return False
        instance, counts = self.instance, picked(self.narrow, asked)
        self.narrow = picked(self.narrow, ~asked)
        table = instance.capacity(self.region, self.longest, few=True)
        self._join(columns(instance.table, instance.layers, table, counts, self.region, few=True, ordered=self.ordered))
        return True

    def _join(self, more: Compositions) -> None:
        more = that_fit(self.instance, self.region, more)
        for row, counts in enumerate(map(tuple, more.counts.tolist()), start=len(self.listed.stages)):
            for seconds, size in self.ruled_out.get(counts, ()):
                self.too_many.add([row], [size], [seconds])
        self.listed = Compositions.concatenated([self.listed, more])
        self.program = self.program.widened(self.listed.counts)
