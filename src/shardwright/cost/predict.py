"""The full account of one strategy: where its time goes, what fills the memory of each stage, what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.cost.compute.flops import iteration_flops
from shardwright.cost.context import Context, Sharded, sharded
from shardwright.cost.iteration.batch import Iteration, iteration, pipeline_seconds
from shardwright.cost.iteration.footprint import footprint, micro_batches
from shardwright.cost.iteration.step import StageTimes, per_rank, ranged, stage_times
from shardwright.cost.memory.fit_probability import fit_probability
from shardwright.cost.money.price import dollars_per_hour
from shardwright.cost.pipeline.splits import boundaries, positions
from shardwright.cost.strategies import Floats, Ints, Strategies
from shardwright.cost.trust.evidence import setting_of
from shardwright.plans.plan import Prediction, StageMemory, TimeBreakdown
from shardwright.rounding import coarse
from shardwright.units import SECONDS_PER_HOUR


def predict(
    context: Context, row: Strategies, *, starts: Ints | None = None, lower_bound_seconds: float | None = None
) -> Prediction:
    """Return the prediction for a single strategy. `starts` [1, stages + 1] is a layer split of its own (default: that
    of the row). Without a bound from a search, it is the model's FLOPs at the peak of all GPUs of the pool."""
    if starts is None:
        starts = boundaries(context.layer_count, int(row.pp[0] * row.vpp[0]), row.first_layers, row.last_layers)
    shards = sharded(context, row)
    parts = iteration(context, row, shards, starts)
    raw = stage_times(context, row, shards, starts)
    rank = int(coarse((raw.forward + raw.backward).sum(axis=1)[0]).argmax())
    time = _breakdown(context, row, shards, starts, parts, raw, rank)
    seconds = time.total_seconds
    memory = _memory(context, row, shards, starts)
    fullest = max(stage.total_bytes for stage in memory)
    job, gpus = context.job, int(row.gpus[0])
    rate = dollars_per_hour(context.pool, row.gpus)
    per_hour = None if rate is None else float(rate[0])
    hours = None if job.iterations is None else job.iterations * seconds / SECONDS_PER_HOUR
    peak = context.source.attainable_flops(context.pool.gpu, context.model, job)
    flops = iteration_flops(context.model, job.global_batch, job.seq_len)
    ideal = flops / (peak * context.pool.gpus)
    setting = setting_of(context.model, context.pool.gpu, gpus, job)
    interval, evidence = context.source.basis(seconds, [setting])
    return Prediction(
        iteration_seconds=seconds,
        interval=interval,
        tokens_per_second=job.tokens_per_iteration / seconds,
        mfu=flops / (seconds * peak * gpus),
        time=time,
        memory=(memory,),
        fit_probability=fit_probability(fullest, context.pool.memory_bytes, context.job),
        dollars_per_hour=per_hour,
        dollars_total=None if per_hour is None or hours is None else per_hour * hours,
        hours_total=hours,
        lower_bound_seconds=ideal if lower_bound_seconds is None else min(lower_bound_seconds, seconds),
        binding=binding_words(time, (memory,), rank),
        evidence=evidence,
    )


def _breakdown(
    context: Context, row: Strategies, shards: Sharded, starts: Ints, parts: Iteration, raw: StageTimes, rank: int
) -> TimeBreakdown:
    """Return where the time goes, seen from the pipeline rank that works most."""
    count = float(micro_batches(context, row)[0])
    where = positions(starts, context.layer_count)

    def of(running: Floats) -> float:
        summed = per_rank(ranged(running, shards.row, where[:, :-1], where[:, 1:]), row)[0, :, rank].sum()
        return count * float(summed)

    table = shards.table
    named = {
        "forward_seconds": of(table.compute_forward),
        "backward_seconds": of(table.compute_backward),
        "recompute_seconds": count * float(raw.recompute[0, :, rank].sum()),
        "tensor_parallel_seconds": of(table.tp_seconds),
        "context_parallel_seconds": of(table.cp_seconds),
        "expert_parallel_seconds": of(table.ep_seconds),
    }
    busy = count * float((raw.forward + raw.backward)[0, :, rank].sum())
    whole = float(pipeline_seconds(context, row, parts)[0])
    free = float(pipeline_seconds(context, row, replace(parts, stages=raw), free_transfers=True)[0])
    software = context.software
    launching = count * 2.0 * software.pass_seconds * int(row.vpp[0])
    gathers = max(busy - launching - sum(named.values()), 0.0)
    return TimeBreakdown(
        **named,
        framework_seconds=launching + software.step_seconds,
        pipeline_seconds=whole - free,
        bubble_seconds=free - busy,
        data_parallel_seconds=gathers + float(parts.data_parallel[0]),
        optimizer_seconds=float(parts.optimizer[0]) - software.step_seconds,
    )


def _memory(context: Context, row: Strategies, shards: Sharded, starts: Ints) -> tuple[StageMemory, ...]:
    peak = footprint(context, row, shards, starts)
    return tuple(
        StageMemory(
            weights_bytes=float(peak.weights[0, rank]),
            gradients_bytes=float(peak.gradients[0, rank]),
            optimizer_bytes=float(peak.optimizer[0, rank]),
            activations_bytes=float(peak.activations[0, rank]),
            logits_bytes=float(peak.logits[0, rank]),
            buffers_bytes=float(peak.buffers[0, rank]),
            context_bytes=float(peak.context[0, rank]),
            capacity_bytes=context.pool.memory_bytes,
        )
        for rank in range(int(row.pp[0]))
    )


def binding_words(time: TimeBreakdown, memory: Sequence[tuple[StageMemory, ...]], rank: int) -> str:
    """Return in words what holds the plan back most. `memory` has a row for each kind of replicas."""
    share, fullest = max(
        (stage.total_bytes / stage.capacity_bytes, -place) for row in memory for place, stage in enumerate(row)
    )
    compute = time.forward_seconds + time.backward_seconds
    losses = {
        "recomputation": time.recompute_seconds,
        "tensor-parallel communication": time.tensor_parallel_seconds,
        "context-parallel communication": time.context_parallel_seconds,
        "expert-parallel communication": time.expert_parallel_seconds,
        "pipeline transfers": time.pipeline_seconds,
        "the pipeline bubble": time.bubble_seconds,
        "gradient reduction": time.data_parallel_seconds,
        "the optimizer step": time.optimizer_seconds,
        "the framework's own overhead": time.framework_seconds,
    }
    worst = max(losses, key=lambda name: losses[name])
    total = time.total_seconds
    found = f"compute of stage {rank} ({compute / total:.0%} of the iteration)"
    if losses[worst] > 0.02 * total:
        found += f", then {worst} ({losses[worst] / total:.0%})"
    return found + f"; memory of stage {-fullest} is {share:.0%} full"
