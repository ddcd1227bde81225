"""The full account of any plan: where its time goes, what fills the memory of each stage, what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.efficiency import Efficiency, peak_flops
from shardwright.cost.compute.flops import job_flops
from shardwright.cost.iteration.lanes import Known, contexts_of, lane_of
from shardwright.cost.iteration.links import Contexts
from shardwright.cost.iteration.mixed import Mixed, ReplicaTime, mixed_iteration, pipeline_seconds
from shardwright.cost.layers.source import layer_source
from shardwright.cost.layers.table import LayerTable
from shardwright.cost.memory.facts import fit_probability
from shardwright.cost.money import egress_dollars, run_stretch
from shardwright.cost.site.calibrated import narrowed, on_site
from shardwright.cost.stage.exact import of_pipelines, per_rank
from shardwright.cost.strategies import stage_starts
from shardwright.cost.trust.evidence import ceiling, conditions_of
from shardwright.cost.trust.interval import doubted
from shardwright.cost.trust.rarity import doubt
from shardwright.plans.plan import Plan, Prediction, Replica, StageMemory, TimeBreakdown
from shardwright.rounding import coarse
from shardwright.spec.cluster import machines_used
from shardwright.spec.job import Job
from shardwright.units import SECONDS_PER_HOUR


def predict(
    plan: Plan,
    efficiency: Efficiency,
    *,
    known: Known | None = None,
    contexts: Contexts | None = None,
    iteration: Mixed | None = None,
) -> Prediction:
    """Return the prediction for a legal plan of any shape. Its interval does not begin before the time of the model's
    FLOPs at the highest utilisation that any run may have (`trust.evidence.ceiling`). The calibration of a site in
    `efficiency` (`cost.site`) moves its seconds. `known` keeps layer tables between calls, as in `mixed_iteration`, and
    `contexts` are those of its GPU types; `iteration` is the plan's where it is known. Raises SpecError where a GPU
    cannot compute in the job's precision."""
    contexts = contexts or contexts_of(plan, efficiency)
    iteration = iteration or mixed_iteration(plan, efficiency, known=known, contexts=contexts)
    source = layer_source(efficiency)
    slowest = int(coarse(np.array([replica.busy_seconds for replica in iteration.replicas])).argmax())
    stages = iteration.replicas[slowest].undisturbed
    rank = int(coarse(stages.both.sum(axis=1)[0]).argmax())
    if plan.layered:
        from shardwright.cost.iteration.layered.plan import layered_breakdown  # few plans are uneven FSDP

        time = layered_breakdown(plan, iteration, contexts)
    else:
        time = _breakdown(plan, iteration, slowest, rank)
    time, site = on_site(plan, time, efficiency)
    memory = tuple(
        _memory(plan, replica, replica_time)
        for replica, replica_time in zip(plan.replicas, iteration.replicas, strict=True)
    )
    seconds, job, used = time.total_seconds, plan.job, plan.gpus_by_type
    peaks = {
        pool.gpu.name: source.attainable_flops(pool.gpu, plan.model, job)
        for pool in plan.cluster.pools
        if pool.gpu.peak(job.precision)
    }
    flops = job_flops(plan.model, job)
    per_hour, hours = _dollars_per_hour(plan, used, seconds), _hours(plan, seconds)
    pools = [pool for pool in plan.cluster.pools if used[pool.gpu.name]]
    sites = len({pool.site for pool in pools})
    types = len({pool.gpu.kind for pool in pools})
    settings = [conditions_of(plan.model, pool.gpu, plan.gpus, job, gpu_types=types, sites=sites) for pool in pools]
    interval, evidence, measured = source.basis(seconds, settings)
    low, high = doubted(narrowed(interval, seconds, site), seconds, doubt(plan))
    quickest = flops / sum(peaks[name] * count for name, count in used.items())
    ceilings = [ceiling(setting.architecture, setting.precision) for setting in settings] if measured else [1.0]
    ideal = flops / sum(peaks.get(pool.gpu.name, 0.0) * pool.gpus for pool in plan.cluster.pools)
    return Prediction(
        iteration_seconds=seconds,
        interval=(max(low, min(quickest / max(ceilings), seconds)), high),
        tokens_per_second=job.tokens_per_iteration / seconds,
        mfu=quickest / seconds,
        time=time,
        memory=memory,
        fit_probability=_fit(memory, job),
        dollars_per_hour=per_hour,
        dollars_total=None if per_hour is None or hours is None else float(coarse(per_hour * hours)),
        hours_total=hours,
        ideal_seconds=ideal,
        busiest_stage=rank,
        evidence=evidence,
        measured=measured,
        site=site,
    )


def _hours(plan: Plan, seconds: float) -> float | None:
    """Return the hours of the whole run, failures counted; None where its length is unknown."""
    if plan.job.iterations is None:
        return None
    return float(coarse(run_stretch(plan) * plan.job.iterations * seconds / SECONDS_PER_HOUR))


def _fit(memory: Sequence[Sequence[StageMemory]], job: Job) -> float:
    """Return the probability that all stages fit in their GPUs, 0 where a host lacks memory."""
    gpus = [gpu for row in memory for gpu in row]
    fit = min(fit_probability(gpu.total_bytes, gpu.capacity_bytes, job) for gpu in gpus)
    return fit if all(gpu.fits_in_host for gpu in gpus) else 0.0


def _dollars_per_hour(plan: Plan, used: Counter[str], seconds: float) -> float | None:
    """Return the price of the machines that the plan needs and of its traffic between sites, with iterations of
    `seconds`; None where one is unknown."""
    total = egress_dollars(plan) * SECONDS_PER_HOUR / seconds
    for pool in plan.cluster.pools:
        if used[pool.gpu.name]:
            peak_flops(pool.gpu, plan.job.precision)
    for pool, count in machines_used(plan.cluster, used):
        if pool.dollars_per_node_hour is None:
            return None
        total += count * pool.dollars_per_node_hour
    return total


def _memory(plan: Plan, replica: Replica, times: ReplicaTime) -> tuple[StageMemory, ...]:
    pools = plan.cluster.pool_of
    names = [term.name for term in fields(times.memory)]
    terms = zip(*(getattr(times.memory, name).tolist() for name in names), strict=True)
    return tuple(
        StageMemory(
            **{f"{name}_bytes": value for name, value in zip(names, row, strict=True)},
            capacity_bytes=pools[stage.gpu].memory_bytes,
            host_capacity_bytes=pools[stage.gpu].host_memory_bytes_per_gpu,
        )
        for stage, row in zip(replica.stages, terms, strict=True)
    )


def _breakdown(plan: Plan, iteration: Mixed, slowest: int, rank: int) -> TimeBreakdown:
    """Return where the time goes, seen from the stage that works most of the replica that takes longest."""
    replica, timed = plan.replicas[slowest], iteration.replicas[slowest]
    lane = lane_of(iteration.lanes, sum(len(before.stages) for before in plan.replicas[:slowest]) + rank)
    starts = np.array([stage_starts(replica, plan.schedule.virtual_stages)])
    stages = of_pipelines(lane.shards.row, starts, lane.context.layer_count)
    count, table = float(replica.micro_batches), lane.shards.table

    def of(running: Floats) -> float:
        return count * float(per_rank(stages.total(running), int(lane.row.vpp[0]))[0, :, rank].sum())

    raw = timed.undisturbed
    busy = count * float(raw.both[0, :, rank].sum())
    free = pipeline_seconds(plan, replica, raw, np.zeros_like(timed.transfers))
    named = _named(table, of, count * float(raw.recompute[0, :, rank].sum()))
    if plan.schedule.weights_apart:
        named["tensor_parallel_seconds"] += of(table.beside_weights)
    software = lane.context.software
    launching = count * 2.0 * software.pass_seconds * plan.schedule.virtual_stages
    hidden = max(busy - launching - sum(named.values()), 0.0)
    update = max(float(times.optimizer.max()) for times in iteration.replicas)
    after = timed.busy_seconds - timed.pipeline_seconds
    return TimeBreakdown(
        **named,
        framework_seconds=launching + software.step_seconds,
        pipeline_seconds=max(timed.pipeline_seconds - free, 0.0),
        bubble_seconds=max(free - busy, 0.0),
        data_parallel_seconds=hidden + after,
        optimizer_seconds=update + iteration.norm_seconds - software.step_seconds,
    )


def _named(table: LayerTable, of: Callable[[Floats], float], recompute: float) -> dict[str, float]:
    """Return the terms of a breakdown that layers have; `of` sums a column over the layers of a stage."""
    return {
        "forward_seconds": of(table.compute_forward),
        "backward_seconds": of(table.compute_backward),
        "recompute_seconds": recompute,
        "tensor_parallel_seconds": of(table.tp_seconds),
        "context_parallel_seconds": of(table.cp_seconds),
        "expert_parallel_seconds": of(table.ep_seconds),
    }
