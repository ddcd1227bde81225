"""The integer program over compositions: can they finish M micro-batches with the units there are?

    max sum_c x_c m_c   subject to   sum_c x_c c_g <= U_g for every type g,  a <= sum_c x_c <= b,  x integer, >= 0

The relaxation gives prices. A column whose reduced cost is more than what the relaxation has above M is in no solution
of M or more, so the integer program has only the few others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.highs import by_columns, highs, status
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.mixed.master.answer import Infeasible, Open, Solved
from shardwright.search.mixed.master.relaxation import Relaxation, Relaxed, relaxation

MOST_INTEGER = 150  # columns of an integer program; of more, the best by reduced cost, which proves nothing
NODES = 30
PREMIUMS = 8  # tried for replicas where the relaxation has fewer than there must be
CLOSE = 1e-6
SETTINGS = {"mip_rel_gap": 0.0, "mip_abs_gap": 0.5, "mip_max_nodes": NODES}


@record
class Selection:
    """A solution: columns, how many `copies` of each, the micro-batches that they finish, `reached`, and how many
    columns they were chosen from."""

    chosen: Ints
    copies: Ints
    reached: int
    tried: int


@record(kw_only=False)
class Limits:
    """`units` of each type [G] that there are, of `degrees` GPUs each; from `fewest` to `most` replicas; if that is
    limited, from `fewest_gpus` to `most_gpus`."""

    units: Ints
    fewest: int
    most: int
    degrees: tuple[int, ...] = ()
    fewest_gpus: int = 1
    most_gpus: int | None = None

    def rows(self, counts: Ints) -> Ints:
        """Return what a replica of each composition [N, G] takes of each limit, [N, R]."""
        parts = [counts, np.ones((len(counts), 1), dtype=np.int64)]
        return np.column_stack([*parts, *([] if self.most_gpus is None else [counts @ np.array(self.degrees)])])

    @property
    def most_of_each(self) -> Ints:
        return np.array([*self.units, self.most, *([] if self.most_gpus is None else [self.most_gpus])])

    @property
    def least_of_each(self) -> list[float]:
        """Limits from below, [R - G]; the relaxation is without them."""
        return [float(self.fewest), *([] if self.most_gpus is None else [float(self.fewest_gpus)])]

    def of_replicas(self, prices: Floats) -> Floats:
        """Return prices of the types and of a replica, [G + 1], that come to those [R] of all limits."""
        types = len(self.units)
        if self.most_gpus is None:
            return prices
        return np.append(prices[:types] + prices[-1] * np.array(self.degrees), prices[types])


@record(kw_only=False)
class MasterProblem:
    """The program of compositions [N, G] within limits."""

    counts: Ints
    limits: Limits
    relaxation: Relaxation

    def widened(self, counts: Ints) -> MasterProblem:
        """Return the program of `counts`, which begin with those of this one."""
        return MasterProblem(counts, self.limits, self.relaxation.widened(self.limits.rows(counts)))

    def relaxed(self, micro_batches: Ints) -> Relaxed:
        """Return the optimum of the relaxation where a composition finishes `micro_batches` [N], with prices of the
        types and of a replica. A replica takes a micro-batch at least."""
        value = micro_batches.astype(np.float64)
        optimum = self.relaxation.optimum(value)
        if self.limits.fewest > 1:
            optimum = _of_as_many(self.relaxation, value, self.limits, optimum)
        return replace(optimum, prices=self.limits.of_replicas(optimum.prices))

    def dive(self, micro_batches: Ints, wanted: int) -> Selection:
        """Return a good solution: the whole part of the relaxation's, again for what is left, one more where that is
        nothing."""
        left = self.limits.most_of_each.astype(np.float64)
        rows = self.relaxation.columns
        value = micro_batches.astype(np.float64)
        taken: dict[int, int] = {}
        need = wanted
        while need > 0:
            fitting = np.flatnonzero((rows <= left).all(axis=1) & (value > 0))
            if not len(fitting):
                break
            amounts = relaxation(rows[fitting], left).optimum(value[fitting]).amounts
            parts = {int(fitting[name]): amount for name, amount in amounts.items()}
            whole = {name: int(amount + CLOSE) for name, amount in parts.items() if amount >= 1.0 - CLOSE}
            if not whole:
                whole = {max(parts, key=lambda name: (parts[name], -name)): 1} if parts else {int(fitting[0]): 1}
            for name, number in whole.items():
                number = min(number, -(-need // int(value[name])))
                if number > 0:
                    taken[name] = taken.get(name, 0) + number
                    left = left - number * rows[name]
                    need -= number * int(value[name])
        chosen = np.array(sorted(taken), dtype=np.int64)
        copies = np.array([taken[name] for name in sorted(taken)], dtype=np.int64)
        reached = int((micro_batches[chosen] * copies).sum())
        return Selection(chosen=chosen, copies=copies, reached=reached, tried=len(rows))

    def solve(self, micro_batches: Ints, wanted: int, asked: Bools) -> Solved[Selection] | Infeasible | Open:
        """(P7) Return a solution that finishes `wanted`, or as many as were reached. A solution has one of the columns
        of each row of `asked` [K, N]."""
        relaxed = self.relaxed(micro_batches)
        if relaxed.value < wanted - CLOSE:
            return Infeasible()
        near = np.flatnonzero((relaxed.reduced_costs <= relaxed.value - wanted + CLOSE) & (micro_batches > 0))
        tried = near[np.argsort(relaxed.reduced_costs[near], kind="stable")[:MOST_INTEGER]]
        bound, copies = self._integer(tried, micro_batches, wanted, asked)
        chosen = np.flatnonzero(copies)
        reached = int((micro_batches[tried[chosen]] * copies[chosen]).sum())
        if len(tried) == len(near) and max(bound, float(reached)) < wanted - CLOSE:
            return Infeasible()
        if not len(chosen):
            return Open()
        return Solved(Selection(chosen=tried[chosen], copies=copies[chosen], reached=reached, tried=len(tried)))

    def _integer(self, tried: Ints, micro_batches: Ints, wanted: int, asked: Bools) -> tuple[float, Ints]:
        """Return a bound of the integer program over the columns `tried`, and a solution."""
        limits = np.append(self.relaxation.limits, np.full(1 + len(asked), np.inf))
        value = micro_batches[tried].astype(np.float64)
        rows = np.column_stack([self.relaxation.columns[tried], value, asked[:, tried].T])
        count, width = rows.shape
        least = [*self.limits.least_of_each, float(wanted)] + [1.0] * len(asked)
        column, row = np.nonzero(rows)
        solver = highs(
            value,
            by_columns(row, column, rows[column, row], count),
            lower=np.zeros(count),
            upper=np.floor(np.where(rows > 0, limits / np.maximum(rows, 1.0), np.inf).min(axis=1) + CLOSE),
            row_lower=np.append(np.full(width - len(least), -np.inf), least),
            row_upper=limits,
            integer=np.ones(count, dtype=bool),
            maximised=True,
            settings={**SETTINGS, "objective_target": float(wanted)},
        )
        solver.run()
        if status(solver) == "infeasible":
            return wanted - 1.0, np.zeros(count, dtype=np.int64)
        bound, solution = float(solver.getInfo().mip_dual_bound), solver.getSolution().col_value
        copies = np.round(np.array(solution)).astype(np.int64) if len(solution) else np.zeros(count, dtype=np.int64)
        return bound if np.isfinite(bound) else np.inf, copies


@record(kw_only=False)
class _Dual:
    """The relaxation with a premium for each replica, less that of the fewest: a bound, and how it changes with the
    premium, by how many more replicas than the fewest there are."""

    premium: float
    bound: float
    slope: float
    optimum: Relaxed


def _of_as_many(relaxation: Relaxation, value: Floats, limits: Limits, relaxed: Relaxed) -> Relaxed:
    """Return the optimum with no fewer replicas than the fewest, from that without, `relaxed`, by the premium that
    bounds it best: the bound is convex in it, so that tangents on both sides lead to the least."""
    able = value > 0.0

    def at(premium: float, optimum: Relaxed) -> _Dual:
        replicas = sum(amount for name, amount in optimum.amounts.items() if able[name])
        bound = optimum.value - premium * limits.fewest
        return _Dual(premium, bound, coarse(replicas - limits.fewest), optimum)

    best = low = at(0.0, relaxed)
    high: _Dual | None = None
    for _ in range(PREMIUMS):
        if low.slope >= -CLOSE or best.bound <= 0.0:
            break
        if high is None:
            premium = low.premium - low.bound / low.slope
        else:
            apart = high.bound - low.bound + low.slope * low.premium - high.slope * high.premium
            premium = apart / (low.slope - high.slope)
        premium = coarse(premium)
        priced = at(premium, relaxation.optimum(value + premium * able))
        best = min(best, priced, key=lambda dual: dual.bound)
        if abs(priced.slope) <= CLOSE or (high is not None and priced.bound >= high.bound - CLOSE):
            break
        low, high = (priced, high) if priced.slope < 0.0 else (low, priced)
    prices = best.optimum.prices.copy()
    prices[len(limits.units)] -= best.premium
    return replace(best.optimum, value=best.bound, prices=prices)


def master_problem(counts: Ints, limits: Limits) -> MasterProblem:
    """Return the program of the compositions `counts` [N, G]."""
    return MasterProblem(counts, limits, relaxation(limits.rows(counts), limits.most_of_each))
