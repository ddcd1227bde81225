"""Why a search found nothing, and the smallest changes of the question that would give a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.money import dollars_per_hour, pool_stretch
from shardwright.cost.strategies import Layouts
from shardwright.plans.findings import (
    Cause,
    Change,
    Cheapest,
    Fastest,
    JobLimits,
    LimitsNotKept,
    MoreHostMemory,
    MoreMachines,
    MoreMemory,
    Need,
    NoLegalLayout,
    OtherBatch,
    PinsTooTight,
    Remedy,
    RulesDropAll,
    ShorterSequence,
    TooLittleMemory,
    Unpin,
)
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import NoPlan, SearchReport
from shardwright.search.kinds import parts_of
from shardwright.search.objective import Objective
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, pin_words, searched
from shardwright.search.space.layouts import candidate_counts, layouts, splits
from shardwright.search.space.parameters import AXES, AXIS_OF
from shardwright.search.uniform.leanest import any_fits, least_in_host, least_on_gpu
from shardwright.search.uniform.search import search
from shardwright.spec.job import Job
from shardwright.units import GIBIBYTE, SECONDS_PER_HOUR

MOST_HOST_BYTES = 2.0**44  # of a machine, tried for a remedy
SHOWN_BYTES = GIBIBYTE / 10  # a tenth of a GiB, as `units.format_bytes` shows it
MORE_MACHINES = (2, 4, 8, 16, 32, 64, 128, 256)  # times those of the cluster, tried for a remedy


def explain(
    contexts: Sequence[Context],
    space: Space,
    filters: Filters,
    report: SearchReport,
    mixed: Callable[[Job, float], Plan | None],
) -> NoPlan:
    """Return the reason and remedies for a search without a plan. `mixed` returns the best plan that mixes GPU types
    for another job, if there is one with less seconds or dollars of an iteration than given."""
    if report.candidates == 0:
        return _nothing_legal(contexts, space)
    limited = any(rejection.cause is Cause.LIMITS for rejection, _ in report.rejected)
    if limited and any(_fits(context, space, filters) for context in contexts):
        return _too_dear(contexts, space, filters, mixed)
    dropping = [rejection.rule for rejection, _ in report.rejected if rejection.cause is Cause.RULE]
    if filters.rules and _possible(contexts, space, Filters()):
        return _ruled_out(contexts, space, filters, dropping)
    if space.pins and _possible(contexts, Space(), filters):
        return _pinned(contexts, space, filters)
    needs, remedies = _short_of_memory(contexts, space, filters)
    if filters.rules and not needs:  # with any memory
        return _ruled_out(contexts, space, filters, dropping)
    return NoPlan(reason=TooLittleMemory(needs), remedies=remedies)


def _possible(contexts: Sequence[Context], space: Space, filters: Filters) -> bool:
    """Return whether the machines of any one type have a plan."""
    job, fitting = contexts[0].job, [context for context in contexts if _fits(context, space, filters)]
    if job.deadline_hours is None and job.budget_dollars is None:
        return bool(fitting)
    return _least(fitting, space, filters) is not None


def _least(contexts: Sequence[Context], space: Space, filters: Filters) -> float | None:
    """Return the least value on the machines of one type, or None if no type has a plan."""
    values = [_try(context, space, filters) for context in (*contexts, *parts_of(contexts))]
    return min((value for value in values if value is not None), default=None)


def _try(context: Context, space: Space, filters: Filters) -> float | None:
    """Return the least value of a search, or None if it finds nothing."""
    objective = Objective(model=context.model, job=context.job, pool=context.pool)
    outcome = search(context, searched(context, space), filters, objective, top=1)
    return None if outcome.least is None else outcome.least[0]


def _nothing_legal(contexts: Sequence[Context], space: Space) -> NoPlan:
    """The settings leave no legal layout at all."""
    context = contexts[0]
    remedies = [
        Unpin(axis, legal=_legal_values(contexts, space, axis))
        for axis in space.pins
        if any(len(_legal(place, _without(space, axis))) for place in contexts)
    ]
    reason = NoLegalLayout(
        gpus=context.pool.gpus,
        gpu=context.pool.gpu.name,
        global_batch=context.job.global_batch,
        pins=tuple(pin_words(axis, values) for axis, values in space.pins.items()),
    )
    return NoPlan(reason=reason, remedies=tuple(remedies) or (Change.OTHER_DEGREES,))


def _legal(context: Context, space: Space) -> Layouts:
    """Return the layouts of a space that have any candidate."""
    space = searched(context, space)
    rows = layouts(context, space)
    return rows.take(candidate_counts(context, space, rows, splits(context, space, rows.pp * rows.vpp)) > 0)


def _legal_values(contexts: Sequence[Context], space: Space, axis: str) -> tuple[str, ...]:
    """Return the values of an axis, in words, with which the other pins have a candidate. Empty where they are neither
    named nor decided by a layout: layers, parts of the state."""
    if AXES[axis]:
        spaces = {code: replace(space, pins={**space.pins, axis: (code,)}) for code in AXES[axis].values()}
        values = [code for code, pinned in spaces.items() if any(len(_legal(place, pinned)) for place in contexts)]
    else:
        columns = [
            getattr(_legal(place, _without(space, axis)), axis, np.zeros(0, dtype=np.int64)) for place in contexts
        ]
        values = np.unique(np.concatenate(columns)).tolist()
    return tuple(pin_words(axis, (value,)).partition("=")[2] for value in values)


def _without(space: Space, axis: str) -> Space:
    """Return the space with an axis left free."""
    return replace(space, pins={name: values for name, values in space.pins.items() if name != axis})


def _ruled_out(contexts: Sequence[Context], space: Space, filters: Filters, dropping: Sequence[str]) -> NoPlan:
    """The rules, a trainer's or the user's, drop what fits: of rules that speak of a pinned axis, those that do so
    alone are named, else those of them that were found `dropping` any, else all that were; and the pins that would
    leave a plan."""
    speaking = [rule for rule in filters.rules if {AXIS_OF.get(name) for name in rule.variables} & set(space.pins)]
    barring = [
        rule.name
        for rule in speaking
        if _possible(contexts, space, Filters(rules=tuple(other for other in filters.rules if other is not rule)))
    ]
    active = [rule.name for rule in speaking if rule.name in dropping]
    names = tuple(barring or active or dropping) or tuple(rule.name for rule in filters.rules)
    freed = tuple(_unpinned(contexts, space, filters))
    remedies: tuple[Remedy, ...] = freed or tuple(_other_batches(contexts, space, filters))
    reason = RulesDropAll(names)  # of which a user has no say in those of trainers
    return NoPlan(reason=reason, remedies=remedies or (() if reason.trainers else (Change.RELAXED_RULES,)))


def _other_batches(contexts: Sequence[Context], space: Space, filters: Filters) -> Iterator[OtherBatch]:
    """Yield the batches next to one that the GPUs do not share evenly, of which each of them has a plan."""
    batch = contexts[0].job.global_batch
    sizes = {context.pool.gpus for context in contexts if batch % context.pool.gpus}
    for other in sorted({batch // gpus * gpus + more for gpus in sizes for more in (0, gpus)} - {0}):
        changed = [replace(context, job=replace(context.job, global_batch=other)) for context in contexts]
        if any(_fits(context, space, filters) for context in changed):
            yield OtherBatch(other)


def _pinned(contexts: Sequence[Context], space: Space, filters: Filters) -> NoPlan:
    freed = tuple(_unpinned(contexts, space, filters))
    return NoPlan(reason=PinsTooTight(), remedies=freed or (Change.FEWER_PINS,))


def _unpinned(contexts: Sequence[Context], space: Space, filters: Filters) -> Iterator[Unpin]:
    """Yield the axes of which any, left free, gives a plan."""
    timed = [replace(context, job=replace(context.job, objective="time")) for context in contexts]
    for axis in space.pins:
        if (seconds := _least(timed, _without(space, axis), filters)) is not None:
            yield Unpin(axis, seconds)


def _too_dear(
    contexts: Sequence[Context], space: Space, filters: Filters, mixed: Callable[[Job, float], Plan | None]
) -> NoPlan:
    """Plans fit, but none keeps the limits on money and time."""
    job, contexts = contexts[0].job, [*contexts, *parts_of(contexts)]
    remedies: list[Remedy] = []
    if job.deadline_hours is not None:
        hours = [_whole_hours(context, space, filters) for context in contexts]
        seconds = min((value for value in hours if value is not None), default=np.inf) * SECONDS_PER_HOUR
        hours.append(_totals(mixed(_freed(job, "time"), seconds / (job.iterations or 1.0)))[0])
        fastest = min((value for value in hours if value is not None), default=None)
        if fastest is not None:
            remedies.append(Fastest(fastest, job.deadline_hours))
    if job.budget_dollars is not None:
        costs = [_whole_dollars(context, space, filters) for context in contexts]
        incumbent = min((value for value in costs if value is not None), default=np.inf) / (job.iterations or 1.0)
        costs.append(_totals(mixed(_freed(job, "cost"), incumbent))[1])
        cheapest = min((value for value in costs if value is not None), default=None)
        if cheapest is not None:
            remedies.append(Cheapest(cheapest, job.budget_dollars))
    limits = JobLimits(deadline_hours=job.deadline_hours, budget_dollars=job.budget_dollars)
    return NoPlan(reason=LimitsNotKept(limits), remedies=(*remedies, Change.OTHER_MACHINES))


def _freed(job: Job, objective: Literal["time", "cost"]) -> Job:
    """Return a job without limits."""
    return replace(job, budget_dollars=None, deadline_hours=None, objective=objective)


def _totals(plan: Plan | None) -> tuple[float | None, float | None]:
    prediction = None if plan is None else plan.prediction
    return (None, None) if prediction is None else (prediction.hours_total, prediction.dollars_total)


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


def _short_of_memory(
    contexts: Sequence[Context], space: Space, filters: Filters
) -> tuple[tuple[Need, ...], tuple[Remedy, ...]]:
    """Nothing fits: return how much memory each GPU would need, and what would do: each has a plan within the rules."""
    needs: list[Need] = []
    remedies: list[Remedy] = []
    for context in contexts:
        pool, least = context.pool, _least_memory(context, space, filters)
        if least is None:
            continue
        needs.append(
            Need(
                framework=context.job.framework, gpus=pool.gpus, gpu=pool.gpu.name, needed_bytes=least,
                memory_bytes=pool.memory_bytes,
            )
        )  # fmt: skip
        for factor in MORE_MACHINES:
            if _fits(replace(context, pool=pool.resized(pool.nodes * factor)), space, filters):
                machines = _fewest(context, space, filters, factor)
                remedies.append(MoreMachines(machines, pool.gpus_per_node, pool.gpu.name))
                break
        remedies.append(MoreMemory(least))
        if (host := _least_host_memory(context, space, filters)) is not None:
            remedies.append(MoreHostMemory(host, pool.gpu.name))
    job = contexts[0].job
    if job.seq_len > 1024:
        half = replace(job, seq_len=job.seq_len // 2)
        if any(_fits(replace(place, job=half), space, filters) for place in contexts):
            remedies.append(ShorterSequence(half.seq_len))
    remedies += _other_batches(contexts, space, filters)
    return tuple(needs), tuple(remedies)


def _fewest(context: Context, space: Space, filters: Filters, factor: int) -> int:
    """Return the least number of machines that does, between half of `factor` times the pool's and that."""
    low, high = context.pool.nodes * factor // 2 + 1, context.pool.nodes * factor
    while low < high:
        middle = (low + high) // 2
        if _fits(replace(context, pool=context.pool.resized(middle)), space, filters):
            high = middle
        else:
            low = middle + 1
    return high


def _fits(context: Context, space: Space, filters: Filters) -> bool:
    return any_fits(context, searched(context, space), filters)


def _least_memory(context: Context, space: Space, filters: Filters) -> float | None:
    """Return the least memory with which a GPU of this kind would have a plan, None where none would do."""
    least = least_on_gpu(context, searched(context, space), filters)
    return None if least is None else _shown(least)


def _least_host_memory(context: Context, space: Space, filters: Filters) -> float | None:
    """Return the least memory of a machine with which these GPUs would have a plan, None where none would."""
    least = least_in_host(context, searched(context, space), filters)
    if least is None or least > MOST_HOST_BYTES:
        return None
    return _shown(least * context.pool.gpus_of_machine / context.pool.gpus_per_node)


def _shown(memory_bytes: float) -> float:
    """Return memory rounded up to what is shown of it, so that what is shown would do, too."""
    return math.ceil(memory_bytes / SHOWN_BYTES) * SHOWN_BYTES
