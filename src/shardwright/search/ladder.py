"""From a user's plan to better ones, one change at a time: each step the one that gains most, free ones first.

A change is free where it moves no degree, no batch and no memory that training needs: overlaps, kernels, the
distributed optimizer, less recomputation. Every step keeps the pins and rules of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.context import Context
from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.iteration.lanes import contexts_of
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.facts import headroom
from shardwright.cost.predict import predict as prediction_of
from shardwright.cost.strategies import (
    BLOCK,
    NONE,
    SELECTIVE,
    UNIFORM,
    UNSHARDED,
    ZERO1,
    ZERO2,
    ZERO3,
    Row,
    plan_of_row,
    row_of,
    settled,
    strategies,
    values_of,
)
from shardwright.plans.abilities import framework_problems
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rows import holding
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, divisors, expert_degrees, virtual_stages, within
from shardwright.search.space.layouts import even_split

LEAST_GAIN = 0.003  # of the time; a smaller one is no step
MOST_STEPS = 10


@record
class Improvement:
    """One change and the plan after it, with its prediction. `free` says whether the change costs nothing."""

    plan: Plan
    free: bool


def ladder(
    plan: Plan,
    *,
    efficiency: Efficiency | None = None,
    space: Space | None = None,
    filters: Filters | None = None,
    fit: float = 0.9,
    accepted: Callable[[Plan], bool] = lambda plan: True,
) -> tuple[Improvement, ...]:
    """Return steps from a uniform, legal `plan`, each with one change against the one before; none for other plans.

    Where the plan does not fit with probability `fit`, the first steps are those that make it. `accepted` says whether
    a target can run a plan. The steps end where no single change gains more than 0.3 %.
    """
    if not plan.uniform or check(plan):
        return ()
    model_of_time = efficiency or default_efficiency()
    (costing,) = contexts_of(plan, model_of_time).values()
    context = replace(costing, headroom=headroom(fit, plan.job))
    climb = _Climb(context, space or Space(), filters or Filters(), plan, accepted)
    row = values_of(row_of(plan))
    steps: list[Improvement] = []
    while len(steps) < MOST_STEPS and (following := climb.best(row)) is not None:
        row, free = following
        chosen = climb.plan_of(row)
        name = context.pool.gpu.name
        costed = chosen.costed(prediction_of(chosen, model_of_time, contexts={name: context}))
        steps.append(Improvement(plan=costed, free=free))
    return tuple(steps)


@record(kw_only=False)
class _Climb:
    context: Context
    space: Space
    filters: Filters
    start: Plan
    accepted: Callable[[Plan], bool]

    def plan_of(self, row: Row) -> Plan:
        gpu = self.context.pool.gpu.name
        return plan_of_row(strategies([row]), self.start.model, self.start.job, self.start.cluster, gpu)

    def best(self, row: Row) -> tuple[Row, bool] | None:
        """Return the change that gains most and whether it is free; None where none gains."""
        changes = [(new, free) for new, free in _changes(self.context, row) if new != row]
        rows = strategies([row, *(new for new, _ in changes)])
        kept = within(self.space, rows) & ~self.filters.mask(self.context, rows)
        legal = [0, *(i for i in range(1, len(rows)) if kept[i] and self.runs(changes[i - 1][0]))]
        verdict = evaluate(self.context, rows.take(np.array(legal)))
        seconds, fits, peak = verdict.seconds, verdict.fits, verdict.peak_bytes
        if not fits[0]:
            able = np.flatnonzero(fits) if fits.any() else np.flatnonzero(peak < 0.99 * peak[0])
            if not len(able):
                return None
            order = seconds if fits.any() else peak
            place = int(able[np.argmin(order[able])])
            return changes[legal[place] - 1]
        for wanted in (True, False):
            kind = [p for p in range(1, len(legal)) if fits[p] and changes[legal[p] - 1][1] == wanted]
            place = min(kind, key=lambda p: float(seconds[p]), default=0)
            if seconds[place] < (1.0 - LEAST_GAIN) * seconds[0]:
                return changes[legal[place] - 1]
        return None

    def runs(self, row: Row) -> bool:
        """Whether a row is a plan that is legal, that its framework runs, and that the target takes."""
        plan = self.plan_of(row)
        return not check(plan) and not any(framework_problems(plan)) and self.accepted(plan)


def _changes(context: Context, row: Row) -> Iterator[tuple[Row, bool]]:
    """Yield rows with one change each, and whether it is free."""
    for change in _switches(row):
        yield {**row, **change}, True
    whole = {"zero_bubble": False}  # recomputation, sharded gradients and a single stage have no such schedule
    for change in _recomputations(context, row):
        apart = {} if change["recompute"] == NONE else whole
        yield {**row, **change, **apart}, change["recompute"] == NONE or row["recompute"] in (UNIFORM, BLOCK)
    for change in (*_states(row), *_batches(context, row), *_pipelines(context, row), *_degrees(context, row)):
        new = {**row, **change}
        yield {**new, **(whole if new["sharding"] >= ZERO2 or new["pp"] == 1 else {})}, False


def _switches(row: Row) -> Iterable[Row]:
    replicas, whole = row["dp"] * row["cp"] > 1, row["sharding"] == UNSHARDED
    overlap: Row = {"overlap_grad": True, "overlap_param": True}
    return holding(
        (True, {"flash": True}),
        (row["tp"] > 1, {"sequence_parallel": True}),
        (row["tp"] > 1, {"sequence_parallel": True, "overlap_tp": True}),
        (True, {"rank_order": 1 - row["rank_order"]}),
        (row["vpp"] > 1, {"overlap_pp": True}),
        (replicas, {"overlap_grad": True}),
        (replicas and whole, {"sharding": ZERO1}),
        (replicas and whole, {"sharding": ZERO1, **overlap}),
        (replicas and not whole, overlap),
        (row["offload"] > 0, {"offload": 0.0}),
        (row["zero_bubble"], {"zero_bubble": False}),
    )


def _recomputations(context: Context, row: Row) -> list[Row]:
    most = -(-context.layer_count // (row["pp"] * row["vpp"]))
    return [
        {"recompute": NONE, "recompute_layers": 0},
        {"recompute": SELECTIVE, "recompute_layers": 0},
        {"recompute": UNIFORM, "recompute_layers": 1},
        *(
            {"recompute": BLOCK, "recompute_layers": layers}
            for layers in sorted({1, most // 4, most // 2, 3 * most // 4, most} - {0})
        ),
    ]


def _states(row: Row) -> Iterator[Row]:
    """Sharding and offload of what a rank keeps."""
    if row["dp"] * row["cp"] > 1:
        for sharding in (ZERO1, ZERO2, ZERO3):
            yield {"sharding": sharding, "overlap_grad": True, "overlap_param": True}
    for offload in (0.5, 1.0):
        yield {"offload": offload, "sharding": max(row["sharding"], ZERO1)}


def _batches(context: Context, row: Row) -> Iterator[Row]:
    samples = context.job.global_batch // row["dp"]
    for size in divisors(samples, 32):
        yield {"micro_batch": size}


def _pipelines(context: Context, row: Row) -> Iterator[Row]:
    """Virtual stages, and layers moved from or to the ends."""
    for vpp in virtual_stages(context, Space(), row["pp"]):
        first, last = even_split(context, row["pp"] * vpp)
        yield {"vpp": vpp, "overlap_pp": vpp > 1, "first_layers": first, "last_layers": last}
    stages = row["pp"] * row["vpp"]
    between = product(range(-2, 2), range(-3, 2)) if stages > 2 else ((moved, -moved) for moved in range(-3, 4))
    for first, last in between if stages > 1 else ():
        ends = row["first_layers"] + first, row["last_layers"] + last
        if min(ends) >= 0 and sum(ends) <= context.layer_count:
            yield {"first_layers": ends[0], "last_layers": ends[1]}


def _degrees(context: Context, row: Row) -> Iterator[Row]:
    """Two degrees that trade a factor, and the expert degrees."""
    names = ("tp", "pp", "dp", "cp")
    for more in names:
        for less in names:
            for factor in (2, 4, 8):
                if more != less and row[less] % factor == 0:
                    yield _with_degrees(context, row, {more: row[more] * factor, less: row[less] // factor})
    for ep in expert_degrees(context):
        yield {"ep": ep}
        yield {"ep": ep, "etp": 1}


def _with_degrees(context: Context, row: Row, degrees: Row) -> Row:
    """Return new degrees with what has to follow from them."""
    new = {**row, **degrees}
    vpp = new["vpp"] if new["pp"] == row["pp"] else 1
    first, last = even_split(context, new["pp"] * vpp)
    if new["pp"] * vpp == row["pp"] * row["vpp"]:
        first, last = row["first_layers"], row["last_layers"]
    ranks, longest = new["dp"] * new["cp"], -(-context.layer_count // (new["pp"] * vpp))
    return settled(
        {
            **new,
            "vpp": vpp,
            "first_layers": first,
            "last_layers": last,
            "offload": row["offload"] if ranks > 1 else 0.0,
            "ep": int(np.gcd(row["ep"], ranks)),
            "etp": min(row["etp"], new["tp"]),
            "sequence_parallel": row["sequence_parallel"] or row["tp"] == 1,
            "recompute_layers": min(row["recompute_layers"], longest) if row["recompute"] in (UNIFORM, BLOCK) else 0,
        }
    )
