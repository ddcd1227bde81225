"""The account of all searches together: candidates and what became of them, seconds, and what was left out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from shardwright.cost.context import Context
from shardwright.cost.learned.links import slower_when_whole
from shardwright.cost.strategies import ZERO2, ZERO3
from shardwright.plans.abilities import computes_weights_apart, makers
from shardwright.plans.findings import (
    Cause,
    MixedPlans,
    Mixing,
    NotCovered,
    Rejection,
    SeveralMakers,
    Uncovered,
    ordered,
)
from shardwright.plans.ranking import SearchReport
from shardwright.rows import holding
from shardwright.search.kinds import OneType, largest_pools, looks_at_unequal, of_each_maker
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, idling_degrees, spread_degrees

if TYPE_CHECKING:
    from shardwright.search.several import Pipelines, Uneven


def left_out(
    results: Sequence[OneType],
    space: Space,
    filters: Filters,
    exportable_to: str | None,
    mixed: Pipelines | None,
    uneven: Uneven | None,
) -> Iterator[Uncovered]:
    """Yield which plans no search looked at: those that mix the types of a cluster, and why, if it has several; those
    that a search for pipelines leaves out; uneven ones on machines of one type."""
    contexts = [result.context for result in results]
    vendors = makers(context.pool.gpu for context in contexts)
    if len(vendors) > 1:
        yield SeveralMakers(vendors)
    if any(len({context.pool.gpu.name for context in able}) > 1 for able in of_each_maker(contexts)):
        from shardwright.search.mixed.restrictions import lacking  # not for one type

        lacks = lacking(contexts, space, filters, one_mesh=exportable_to is not None)
        if lacks:
            yield MixedPlans(lacks, Mixing.UNEQUAL if mixed else Mixing.PIPELINES if uneven else Mixing.ANY)
    if len(contexts) > 1 and any(slower_when_whole(context.pool) for context in contexts):
        yield NotCovered.PARTS_OF_MACHINES
    yield from mixed.outcome.not_covered if mixed else ()
    pinned = space.pins.get("tp")
    if any(pinned is None or tp in pinned for context in contexts for tp in idling_degrees(context)):
        yield NotCovered.IDLE_GPUS_OF_MACHINES
    if any(pinned is None or tp in pinned for context in contexts for tp in spread_degrees(context)):
        yield NotCovered.SPREAD_TENSOR_PARALLEL
    if any(context.pool.gpus > 1 for context in contexts):
        yield from _uneven_on_one_type(contexts, space, filters, exportable_to)
        if space.pins.get("pp") != (1,) and space.allowed("sharding", (ZERO2, ZERO3)):
            yield NotCovered.SHARDED_PIPELINES
        said = mixed is not None and NotCovered.ZERO_BUBBLE in mixed.outcome.not_covered
        if not said and "zero_bubble" not in space.pins and computes_weights_apart(contexts[0].job):
            yield NotCovered.ZERO_BUBBLE


def _uneven_on_one_type(
    contexts: Sequence[Context], space: Space, filters: Filters, exportable_to: str | None
) -> Iterable[NotCovered]:
    """Return which plans on several GPUs of one type no search looked at."""
    able = of_each_maker(largest_pools(contexts))
    looked_at = exportable_to is not None or all(looks_at_unequal(context, space, filters) for context in able)
    return holding(
        (not looked_at and contexts[0].job.global_batch > 1, NotCovered.UNEQUAL_REPLICAS_OF_A_TYPE),
        (contexts[0].layer_count > 1 and space.pins.get("pp") != (1,), NotCovered.OTHER_SPLITS),
    )


def report_of(
    results: Sequence[OneType],
    begin: float,
    mixed: Pipelines | None,
    uneven: Uneven | None,
    not_covered: tuple[Uncovered, ...],
    value: float | None,
    bound: float,
    indifference: float,
    *,
    interrupted: bool,
) -> SearchReport:
    """Return the account of the searches of all pools together: `value` is that of the first plan, which no plan beats
    `bound` in, what an `interrupted` search did not look at included."""
    rejected: dict[Rejection, int] = {}
    phases: dict[str, float] = {}
    for result in results:
        phases["baselines"] = phases.get("baselines", 0.0) + result.baseline_seconds
        for name, seconds in result.found.phases:
            phases[name] = phases.get(name, 0.0) + seconds
        for reason, count in result.found.rejected:
            rejected[reason] = rejected.get(reason, 0) + count
    candidates = sum(result.found.candidates for result in results)
    costed, unneeded = sum(result.found.costed for result in results), 0
    if mixed is not None:
        phases["mixed"] = mixed.seconds
        candidates += mixed.outcome.candidates
        costed += mixed.outcome.costed
        unneeded += max(mixed.outcome.candidates - mixed.outcome.costed, 0)
    if uneven is not None:
        phases["uneven"] = uneven.seconds
        candidates += uneven.outcome.candidates
        costed += uneven.outcome.costed
        unneeded += uneven.outcome.candidates - uneven.outcome.costed
    if unneeded:
        rejected[Rejection(Cause.NOT_NEEDED)] = unneeded
    by_time = results[0].context.job.objective == "time"
    seconds = time.perf_counter() - begin
    phases["predict"] = max(seconds - sum(phases.values()), 0.0)
    return SearchReport(
        candidates=candidates,
        costed=costed,
        seconds=seconds,
        rejected=ordered(rejected),
        phases=tuple(phases.items()),
        not_covered=not_covered,
        gap=gap_of(value, bound) if value is not None and (by_time or mixed or interrupted) else None,
        lower_bound_dollars=bound if value is not None and (mixed or interrupted) and not by_time else None,
        interrupted=interrupted,
        indifference=indifference,
    )


def gap_of(value: float, bound: float) -> float:
    """Return by what part of a bound a value is above it."""
    return value / bound - 1.0 if value > bound else 0.0
