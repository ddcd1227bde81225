"""The best shares of uneven FSDP over machines of several types, with a bound; and FSDP with even shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.context import Context
from shardwright.cost.iteration.layered.seconds import Everyone, everyone_of
from shardwright.cost.strategies import ZERO3
from shardwright.plans.abilities import makers
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.search.space.axes import Space
from shardwright.search.uneven.options import GpuOptions, gpu_options
from shardwright.search.uneven.rows import RowCounts, bound_seconds, iteration_seconds, shared_rows
from shardwright.search.uneven.shares import FINER, Shares, around, grid, parts_of, plan_of, shares_of, steps_for
from shardwright.spec.cluster import Cluster, machines_used
from shardwright.units import SECONDS_PER_HOUR

MOST_SETS = 4  # types of which all sets are tried; of more, the sets of the fastest; chosen
WAVES = (1, 2, 4, 8, 16, 32)
SAME = 0.001  # even shares of the state are taken where uneven ones gain no more; chosen
ROUGH_STEPS = 10  # of the state, for a bound at once; chosen
REFINED = 3  # points of the grid around which it is refined; chosen
# What these plans always have; a pin to anything else leaves none.
FIXED = {
    **dict.fromkeys(("tp", "cp", "pp", "ep", "etp", "vpp"), 1),
    "sequence_parallel": 0,
    "flash": 1,
    "overlap_tp": 0,
    "overlap_pp": 0,
    "zero_bubble": 0,
    "overlap_grad": 1,
    "overlap_param": 1,
    "sharding": ZERO3,
    "offload": 0.0,
}
SEARCHED = ("micro_batch", "recompute", "recompute_layers", "gpus", "dp")
EVEN_RULE = "FSDP with even shares over all machines"


@record
class UnevenResult:
    """Plans of the best shares on each set of GPU types and number of waves, best first by their own seconds; the plan
    with even shares, if one fits; what no shares beat, in what the job minimises; and how many shares of the state were
    looked at and costed."""

    plans: tuple[Plan, ...]
    even: Plan | None
    even_rule: str
    bound: float
    candidates: int
    costed: int


@record(kw_only=False)
class _Best:
    seconds: float
    plan: Plan


def away(space: Space) -> bool:
    """Return whether pins leave no plan of uneven FSDP."""
    return any(axis not in SEARCHED and FIXED.get(axis) not in values for axis, values in space.pins.items())


def uneven_fsdp(
    contexts: Sequence[Context],
    cluster: Cluster,
    space: Space,
    allowed: Callable[[Plan], bool],
    *,
    fewest_types: int = 2,
    enough: float = np.inf,
) -> UnevenResult:
    """Return the best plans of uneven FSDP over `fewest_types` of `contexts` and more, one context for each type. Once
    there is a plan, sets of GPUs whose bound is beyond `enough`, in what the job minimises, are not searched."""
    plans: list[_Best] = []
    evens: list[_Best] = []
    candidates, costed, bounds = 0, 0, [np.inf]
    groups = list(_groups(contexts, cluster, space, fewest_types))
    rough = [_bound(*group, ROUGH_STEPS) for group in groups]
    for place in np.argsort(rough, kind="stable").tolist():
        options, everyone = groups[place]
        if len(options) == len(contexts):
            evens += _even(options, everyone, cluster)
        bound = rough[place]
        if not plans or bound <= enough:
            bound = _bound(options, everyone, steps_for(len(options)))
        if not plans or bound <= enough:
            best, count = _best(options, everyone, cluster)
            candidates, costed = candidates + count, costed + count
            plans += [candidate for candidate in best if allowed(candidate.plan)]
        else:
            candidates += len(grid(len(options), steps_for(len(options))))
        bounds.append(bound)
    plans.sort(key=lambda candidate: candidate.seconds)
    even = min(evens, key=lambda candidate: candidate.seconds).plan if evens else None
    return UnevenResult(
        plans=tuple(candidate.plan for candidate in plans),
        even=even,
        even_rule=EVEN_RULE,
        bound=min(bounds),
        candidates=candidates,
        costed=costed,
    )


def _groups(
    contexts: Sequence[Context], cluster: Cluster, space: Space, fewest_types: int
) -> Iterator[tuple[list[GpuOptions], Everyone]]:
    """Yield what the GPUs of each set of types do in so many waves, with all of them as one group."""
    for chosen in _sets(contexts, fewest_types):
        if len(makers(context.pool.gpu for context in chosen)) > 1:
            continue
        batch, gpus = chosen[0].job.global_batch, sum(context.pool.gpus for context in chosen)
        if not all(gpus in space.pins.get(axis, (gpus,)) for axis in ("gpus", "dp")):
            continue
        everyone: Everyone | None = None
        for waves in (waves for waves in WAVES if waves * gpus <= batch):
            every = [gpu_options(context, space, gpus, waves, flash=True) for context in chosen]
            options = [gpu for gpu in every if gpu is not None and len(gpu.seconds)]
            if len(options) < len(chosen):
                break
            everyone = everyone or _everyone(options, cluster)
            yield options, everyone


def _sets(contexts: Sequence[Context], fewest: int) -> Iterator[Sequence[Context]]:
    """Yield the sets of `fewest` types and more, all of them first."""
    types = len(contexts)
    if types <= MOST_SETS:
        for size in range(types, fewest - 1, -1):
            yield from combinations(contexts, size)
        return
    fastest = sorted(contexts, key=lambda context: -(context.pool.gpu.peak(context.job.precision) or 0.0))
    yield from (fastest[:size] for size in range(types, fewest - 1, -1))


def _everyone(options: Sequence[GpuOptions], cluster: Cluster) -> Everyone:
    """Return all GPUs as one group, from a plan over them: where they stand does not depend on shares."""
    ones = np.full(len(options), options[0].fewest_rows)
    total = sum(gpu.count for gpu in options)
    small = replace(options[0].context.job, global_batch=total * options[0].fewest_rows)
    shares = Shares(rows=ones, option=0 * ones, state=(1,) * len(options), parts=total)
    least = [replace(gpu, context=replace(gpu.context, job=small)) for gpu in options]
    contexts = {gpu.context.pool.gpu.name: gpu.context for gpu in options}
    plan = plan_of(least, cluster, shares, flash=True)
    assert plan is not None, "the batch was made for it"
    return everyone_of(plan, contexts)


def _best(options: Sequence[GpuOptions], everyone: Everyone, cluster: Cluster) -> tuple[list[_Best], int]:
    """Return the plan of the best shares, none where nothing fits, and how many shares of the state were costed."""
    counts = [gpu.count for gpu in options]
    total, steps = sum(counts), steps_for(len(options))
    coarse = [(point, steps) for point in grid(len(options), steps)]
    tried = [(np.array(counts), total), *coarse]  # even shares first, which need no buffers
    seconds, rows = _costed(options, everyone, tried)
    best = np.argsort(seconds, kind="stable")[:REFINED]
    finer = [
        (point, steps * FINER)
        for place in best.tolist()
        if place and np.isfinite(seconds[place]) and len(options) > 1
        for point in around(tried[place][0], steps)
    ]
    more, further = _costed(options, everyone, finer) if finer else (np.zeros(0), rows.take(slice(0, 0)))
    seconds, rows, tried = np.concatenate([seconds, more]), RowCounts.concatenated([rows, further]), [*tried, *finer]
    first = int(seconds.argmin())
    if seconds[0] <= seconds[first] * (1.0 + SAME):
        first = 0
    if not np.isfinite(seconds[first]):
        return [], len(tried)
    state, parts = parts_of(*tried[first], counts)
    shares = Shares(rows=rows.rows[first], option=rows.option[first], state=state, parts=parts)
    plan = plan_of(options, cluster, shares, flash=True)
    return [] if plan is None else [_Best(float(seconds[first]), plan)], len(tried)


def _costed(
    options: Sequence[GpuOptions], everyone: Everyone, tried: Sequence[tuple[Ints, int]]
) -> tuple[Floats, RowCounts]:
    counts = [gpu.count for gpu in options]
    state = np.concatenate([shares_of(point[None], steps, counts) for point, steps in tried])
    rows = shared_rows(options, state)
    return iteration_seconds(options, everyone, rows, state), rows


def _bound(options: Sequence[GpuOptions], everyone: Everyone, steps: int) -> float:
    """Return what no shares on these machines beat: seconds, or dollars of an iteration where these are minimised. The
    finer the `steps` of the state, the nearer."""
    lean = [replace(gpu, held=gpu.needed) for gpu in options]
    seconds = bound_seconds(lean, everyone, steps)
    if options[0].context.job.objective == "time":
        return seconds
    pools = Cluster(pools=tuple(gpu.context.pool for gpu in options))
    rented = machines_used(pools, {gpu.context.pool.gpu.name: gpu.count for gpu in options})
    rates = [None if (rate := pool.dollars_per_node_hour) is None else count * rate for pool, count in rented]
    known = [rate for rate in rates if rate is not None]
    return seconds * sum(known) / SECONDS_PER_HOUR if len(known) == len(rates) else np.inf


def _even(options: Sequence[GpuOptions], everyone: Everyone, cluster: Cluster) -> list[_Best]:
    """Return the best plan in which all GPUs have equal shares and run them in the same way, none where none fits;
    first types take the rows that are left over."""
    counts = np.array([gpu.count for gpu in options])
    total, job = int(counts.sum()), options[0].context.job
    samples, over = divmod(job.global_batch, total)
    ways = min(len(gpu.seconds) for gpu in options)
    more = np.clip(over - (np.cumsum(counts) - counts), 0, counts)
    rows = np.tile(samples + (more > 0), (ways, 1))
    option = np.tile(np.arange(ways)[:, None], (1, len(options)))
    state = np.full(rows.shape, 1.0 / total)
    fits = [
        np.isfinite(gpu.seconds[np.arange(ways), rows[:, place] - 1])
        & (gpu.held[np.arange(ways), rows[:, place] - 1] <= gpu.room - gpu.state_bytes / total)
        for place, gpu in enumerate(options)
    ]
    possible = np.all(fits, axis=0)
    even = RowCounts(rows=rows, option=option, seconds=np.zeros(ways), possible=possible)
    seconds = iteration_seconds(options, everyone, even, state)
    first = int(seconds.argmin())
    if not np.isfinite(seconds[first]):
        return []
    shares = Shares(rows=rows[first], option=option[first], state=(1,) * len(options), parts=total)
    plan = plan_of(options, cluster, shares, flash=True, label=EVEN_RULE)
    return [] if plan is None else [_Best(float(seconds[first]), plan)]
