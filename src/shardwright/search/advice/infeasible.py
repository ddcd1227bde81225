"""Why a search found nothing, and the smallest changes that would give a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.money.price import dollars_per_hour
from shardwright.cost.money.risk import pool_stretch
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Infeasible, SearchReport
from shardwright.search.objective import Objective
from shardwright.search.renting.expected import run_totals
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space
from shardwright.search.space.layouts import layouts
from shardwright.search.uniform.search import search
from shardwright.spec.job import Job
from shardwright.units import SECONDS_PER_HOUR, format_bytes, format_dollars, format_seconds

MORE_MACHINES = (2, 4, 8, 16, 32, 64, 128, 256)


def explain(
    contexts: Sequence[Context],
    space: Space,
    filters: Filters,
    report: SearchReport,
    mixed: Callable[[Job, float], Plan | None],
) -> Infeasible:
    """Return the reason and remedies for a search without a plan. `mixed` returns the best plan that mixes GPU types
    for another job, if there is one with less seconds or dollars of an iteration than given."""
    if report.candidates == 0:
        return _nothing_legal(contexts[0], space)
    limited = any(reason == "budget or deadline" for reason, _ in report.rejected)
    if limited and _possible([replace(each, job=_freed(each.job, "time")) for each in contexts], space, filters):
        return _too_dear(contexts, space, filters, mixed)
    if filters.rules and _possible(contexts, space, Filters()):
        names = ", ".join(rule.name for rule in filters.rules)
        return Infeasible(reason=f"the rules drop every plan that fits ({names})", remedies=("relax or drop a rule",))
    if space.pins and _possible(contexts, Space(), filters):
        return _pinned(contexts, space, filters)
    return _memory(contexts, space)


def _possible(contexts: Sequence[Context], space: Space, filters: Filters) -> bool:
    """Return whether the machines of any one type have a plan."""
    return _least(contexts, space, filters) is not None


def _least(contexts: Sequence[Context], space: Space, filters: Filters) -> float | None:
    """Return the least value on the machines of one type, or None if no type has a plan."""
    values = [_try(context, space, filters) for context in contexts]
    return min((value for value in values if value is not None), default=None)


def _try(context: Context, space: Space, filters: Filters) -> float | None:
    """Return the least value of a search, or None if it finds nothing."""
    objective = Objective(model=context.model, job=context.job, pool=context.pool)
    found = search(context, space, filters, objective, top=1)
    return found.ranked[0][0] if found.ranked else None


def _nothing_legal(context: Context, space: Space) -> Infeasible:
    """The settings leave no legal layout at all."""
    remedies = []
    for axis in space.pins:
        rest = Space(pins={name: values for name, values in space.pins.items() if name != axis})
        if len(layouts(context, rest)):
            remedies.append(f"without --set {axis}=… there are legal layouts")
    pins = " ".join(f"{axis}={','.join(map(str, values))}" for axis, values in space.pins.items())
    reason = f"no layout of {context.pool.gpus} × {context.pool.gpu.name} is legal"
    return Infeasible(
        reason=reason + (f" with {pins}" if pins else f" for global batch {context.job.global_batch}"),
        remedies=tuple(remedies) or ("degrees must divide heads, layers' widths and the global batch; change one",),
    )


def _pinned(contexts: Sequence[Context], space: Space, filters: Filters) -> Infeasible:
    timed = [replace(context, job=replace(context.job, objective="time")) for context in contexts]
    remedies = []
    for axis in space.pins:
        rest = Space(pins={name: values for name, values in space.pins.items() if name != axis})
        seconds = _least(timed, rest, filters)
        if seconds is not None:
            remedies.append(f"without --set {axis}=… it fits ({format_seconds(seconds)} an iteration)")
    return Infeasible(
        reason="nothing fits with the parameters that --set pins", remedies=tuple(remedies) or ("pin fewer parameters",)
    )


def _too_dear(
    contexts: Sequence[Context], space: Space, filters: Filters, mixed: Callable[[Job, float], Plan | None]
) -> Infeasible:
    """Plans fit, but none keeps the limits on money and time."""
    job = contexts[0].job
    stated = {"budget": job.budget_dollars, "deadline": job.deadline_hours}
    limits = " and the ".join(name for name, limit in stated.items() if limit is not None)
    remedies = []
    if job.deadline_hours is not None:
        hours = [_whole_hours(context, space, filters) for context in contexts]
        hours.append(_totals(mixed(_freed(job, "time"), np.inf))[0])
        fastest = min((value for value in hours if value is not None), default=None)
        if fastest is not None:
            remedies.append(f"the fastest possible takes {fastest:.1f} hours (asked for {job.deadline_hours:g})")
    if job.budget_dollars is not None:
        costs = [_whole_dollars(context, space, filters) for context in contexts]
        ceiling = min((value for value in costs if value is not None), default=np.inf) / (job.iterations or 1.0)
        costs.append(_totals(mixed(_freed(job, "cost"), ceiling))[1])
        cheapest = min((value for value in costs if value is not None), default=None)
        if cheapest is not None:
            remedies.append(
                f"the cheapest possible is {format_dollars(cheapest)} (budget {format_dollars(job.budget_dollars)})"
            )
    return Infeasible(reason=f"plans fit in memory, but none keeps the {limits}", remedies=tuple(remedies))


def _freed(job: Job, objective: Literal["time", "cost"]) -> Job:
    """Return a job without limits."""
    return replace(job, budget_dollars=None, deadline_hours=None, objective=objective)


def _totals(plan: Plan | None) -> tuple[float | None, float | None]:
    return (None, None) if plan is None else run_totals(plan)


def _whole_hours(context: Context, space: Space, filters: Filters) -> float | None:
    job = _freed(context.job, "time")
    seconds = _try(replace(context, job=job), space, filters)
    longer = float(pool_stretch(context.model, job, context.pool, np.array([context.pool.nodes]))[0])
    return None if seconds is None or job.iterations is None else longer * seconds * job.iterations / SECONDS_PER_HOUR


def _whole_dollars(context: Context, space: Space, filters: Filters) -> float | None:
    if dollars_per_hour(context.pool, np.array([1])) is None:
        return None
    job = _freed(context.job, "cost")
    dollars = _try(replace(context, job=job), space, filters)
    return None if dollars is None or job.iterations is None else dollars * job.iterations


def _memory(contexts: Sequence[Context], space: Space) -> Infeasible:
    """Nothing fits: how much is missing on each GPU, and how many machines would do."""
    reasons, remedies = [], []
    for context in contexts:
        pool, least = context.pool, _least_memory(context, space)
        if least is None:
            continue
        reasons.append(
            f"the leanest plan on {pool.gpus} × {pool.gpu.name} needs {format_bytes(least)} a GPU of "
            f"{format_bytes(pool.memory_bytes)}"
        )
        for factor in MORE_MACHINES:
            larger = replace(pool, nodes=pool.nodes * factor)
            if _try(replace(context, pool=larger), space, Filters()) is not None:
                remedies.append(
                    f"{_fewest(context, space, factor)} machines of {pool.gpus_per_node} × {pool.gpu.name} would do"
                )
                break
        remedies.append(f"GPUs with {format_bytes(least)} of memory would do")
    job = contexts[0].job
    if job.seq_len > 1024:
        half = replace(job, seq_len=job.seq_len // 2)
        if _try(replace(contexts[0], job=half), space, Filters()) is not None:
            remedies.append(f"a sequence length of {half.seq_len} fits")
    return Infeasible(reason="; ".join(reasons) or "nothing fits in memory", remedies=tuple(remedies))


def _fewest(context: Context, space: Space, factor: int) -> int:
    """Return the least number of machines that does, between half of `factor` times the pool's and that."""
    low, high = context.pool.nodes * factor // 2 + 1, context.pool.nodes * factor
    while low < high:
        middle = (low + high) // 2
        pool = replace(context.pool, nodes=middle)
        if _try(replace(context, pool=pool), space, Filters()) is not None:
            high = middle
        else:
            low = middle + 1
    return high


def _least_memory(context: Context, space: Space) -> float | None:
    """Return the least memory with which a GPU of this kind would have a plan, to 1 %."""
    low, high = context.pool.memory_bytes, context.pool.memory_bytes
    for _ in range(12):
        high *= 2.0
        if _try(_with_memory(context, high), space, Filters()) is not None:
            break
    else:
        return None
    while high > 1.01 * low:
        middle = (low * high) ** 0.5
        if _try(_with_memory(context, middle), space, Filters()) is not None:
            high = middle
        else:
            low = middle
    return high


def _with_memory(context: Context, size_bytes: float) -> Context:
    return replace(context, pool=replace(context.pool, memory_bytes=size_bytes))
