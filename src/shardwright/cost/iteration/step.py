"""The time of one iteration: stage times, the pipeline, gradient reduction, the optimizer.

    T = T_pipeline + max_i tail_i + max_i gather_i + max_i optimizer_i + T_norm

`tail_i` is what gradient reduction adds on pipeline rank i after its last backward pass, `gather_i` what gathering
the updated weights adds before its first forward pass. Rank i ends its backward passes earlier than rank 0, and
starts its forward passes later, by the passes of the ranks before it; that slack hides communication too. Rows are
strategies with equal numbers of pipeline ranks P and virtual stages v; stage arrays are [N, v, P].
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.arrays import Array, Bools, Floats, Ints
from shardwright.cost.context import Context, LayerRows
from shardwright.cost.frameworks.optimizer import paged_width, update_width
from shardwright.cost.frameworks.overheads import BACKWARD_LAUNCHES, UPDATE_EFFICIENCY, launched_seconds
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.gathers import (
    frozen_part,
    micro_batches,
    moved_in_passes,
    once_a_step,
    summed_at_last,
    summed_beside,
)
from shardwright.cost.layers.table import LayerTable
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.memory.sizes import SINGLE, reference_is_unit, summed_bytes, trained_share
from shardwright.cost.network.collectives import (
    Fabric,
    Group,
    exposed_seconds,
    gather_seconds,
    group,
    product,
    rack_seconds,
    reduce_seconds,
    stage_crossings,
    to_host_seconds,
    transfer_seconds,
)
from shardwright.cost.stage.exact import Ranges, left_over, of_pipelines, per_rank, repeated_seconds
from shardwright.cost.strategies import (
    DATA_OUTERMOST,
    UNSHARDED,
    ZERO2,
    ZERO3,
    Strategies,
)
from shardwright.records import record
from shardwright.spec.job import Job
from shardwright.spec.model import Model

BUCKET_SHARE = 0.9  # of a pass that gradient buckets can travel beside, the last one cannot; chosen, 0.75 to 1
HOST_STATE_BYTES = 28.0  # what an update moves in host memory: UPDATE_BYTES without the norm; documented
HOST_SUM_BYTES = 12.0  # of host memory, to add a gradient to another, both in fp32; documented
HOST_EFFICIENCY = 0.6  # of the host memory's bandwidth, in updates by its processors; chosen, 0.4 to 0.8


@record
class StageTimes:
    """Seconds of one micro-batch, [N, v, P]: forward and backward as the schedule runs them (recomputation in the
    backward), recomputation alone, and the gradients of weights where these are no part of the backward."""

    forward: Floats
    backward: Floats
    recompute: Floats
    weights: Floats

    @property
    def both(self) -> Floats:
        """All that a micro-batch takes."""
        return self.forward + (self.backward + self.weights)


@record
class DataParallel:
    """Groups over which dense and expert parameters are replicated, [N], or those of each stage, [N, P]."""

    dense: Group
    expert: Group


def stage_times(context: Context, rows: Strategies, shards: LayerRows, starts: Ints) -> StageTimes:
    """Return the times of every stage for one micro-batch."""
    table, stages = shards.table, of_pipelines(shards.row, starts, context.layer_count)
    forward, backward = stages.total(table.forward), stages.total(table.backward)
    mode, count = rows.recompute[:, None], rows.recompute_layers[:, None]
    recompute = repeated_seconds(table.forward, table.core_seconds, table.tower_again, stages, mode, count)
    extra_forward, extra_backward = sharded_weight_seconds(context, rows, shards.table, stages, forward, backward)
    per_pass, host = context.software.pass_seconds, serial_launch_seconds(context, rows, starts)
    alone, backward = launched_seconds(forward, host) + per_pass, backward + recompute + extra_backward
    forward = launched_seconds(forward + extra_forward, host) + per_pass
    chunks = int(rows.vpp[0])
    backward, weights = launched_seconds(backward, BACKWARD_LAUNCHES * host) + per_pass, np.zeros_like(backward)
    if context.job.preference is not None:
        forward = forward + _without_gradients(context, rows, table, stages, forward, alone)
    if rows.zero_bubble.any():
        apart = rows.zero_bubble[:, None]
        weights = np.where(apart, np.minimum(stages.total(table.weight_seconds), backward), 0.0)
        backward = backward - weights + apart * stages.total(table.beside_weights)
    return StageTimes(
        forward=per_rank(forward, chunks),
        backward=per_rank(backward, chunks),
        recompute=per_rank(recompute, chunks),
        weights=per_rank(weights, chunks),
    )


def _without_gradients(
    context: Context, rows: Strategies, table: LayerTable, stages: Ranges, forward: Floats, alone: Floats
) -> Floats:
    """Return the seconds of the forward passes of a micro-batch without gradients, [N, V], where a `forward` pass is
    `alone` beside its gathers. What a reference that is one unit gathers comes before all that it computes."""
    job, preference = context.job, context.job.preference
    assert preference is not None, "only asked where there is a loss over preferences"
    if not reference_is_unit(job):
        return forward * job.passes_without_gradients
    sharded, groups = (rows.sharding == ZERO3)[:, None], stage_groups(context, rows)
    dense, expert, width = stages.total(table.dense), stages.total(table.expert), widths_of(job).weight_gather
    gathered = both_gather_seconds(context.links, groups, dense, expert, width)
    if memory_facts(job.framework).weights_follow and rows.offload.any():
        kept = dense / groups.dense.size + expert / groups.expert.size
        away = (SINGLE if job.masters else width) * rows.offload[:, None] * kept
        gathered = gathered + to_host_seconds(context.pool.gpu, away)
    apart = alone + np.where(sharded, gathered, 0.0)
    return np.asarray(forward * preference.policy_passes + apart * preference.reference_passes)


def serial_launch_seconds(context: Context, rows: Strategies, starts: Ints) -> Floats:
    """Return the host time of a forward pass that cannot hide, [N, V]: the collectives of tensor parallelism, one after
    the other beside a pipeline's messages."""
    ranks = rows.tp * (rows.tp > 1) * (rows.pp > 1) * (context.job.options.cuda_graph not in ("layers", "full"))
    return np.asarray(context.software.rank_seconds * ranks[:, None] * np.diff(starts, axis=1))


def data_parallel(context: Context, rows: Strategies) -> DataParallel:
    """Return the data-parallel groups (context-parallel ranks hold the same weights and belong to them), at best: as
    many of their ranks share a domain as it has room for."""
    links = context.links
    inside = np.where(rows.rank_order == DATA_OUTERMOST, rows.pp, 1)
    dense = product(group(links, rows.cp, rows.tp), group(links, rows.dp, rows.tp * rows.cp * inside))
    width = rows.ep * rows.etp
    expert = group(links, rows.tp * rows.cp * rows.dp // width, width * inside)
    return DataParallel(dense=dense, expert=expert)


def stage_groups(context: Context, rows: Strategies, stages: int = 1) -> DataParallel:
    """Return the data-parallel groups of each of the first `stages`, [N, P], by where they stand: the ranks of a stage
    follow one another, and where they end within a domain, that with fewest of them holds up the ring. With data
    outermost they are taken to begin in a domain of their own. Of domains of several machines schedulers give out parts
    that jobs fill (SLURM's --segment): groups are as good as they can be."""
    best, domain, outermost = data_parallel(context, rows), context.links.domain_gpus, rows.rank_order == DATA_OUTERMOST
    if domain > context.pool.gpus_per_node:
        return DataParallel(dense=best.dense.column, expert=best.expert.column)
    width, place = rows.ep * rows.etp, np.arange(stages)
    ranks, gpus = rows.dp * rows.cp, rows.tp * rows.cp * rows.dp
    held = _fewest_in_a_domain(ranks[:, None], np.maximum(domain // rows.tp, 1)[:, None], place * ranks[:, None])
    of_experts = _fewest_in_a_domain(gpus[:, None], np.full_like(gpus, domain)[:, None], place * gpus[:, None])
    apart = [_fewest_in_a_domain(groups.size, groups.local, 0)[:, None] for groups in (best.dense, best.expert)]
    dense = np.where(outermost[:, None], apart[0], held)
    expert = np.where(outermost[:, None], apart[1], np.maximum(of_experts // width[:, None], 1))
    return DataParallel(
        dense=replace(best.dense.column, local=dense),
        expert=replace(best.expert.column, local=np.minimum(expert, best.expert.size[:, None])),
    )


def _fewest_in_a_domain(size: Array, room: Array, before: Array | int) -> Array:
    """Return how many of `size` ranks that follow one another are in the domain that has fewest of them, where a domain
    has `room` for so many and as many are `before` them."""
    first = np.minimum(size, room - before % room)
    rest = size - first
    last = np.where(rest % room == 0, room, rest % room)
    return np.asarray(np.where(rest == 0, first, np.minimum(first, last)))


def sharded_weight_seconds(
    context: Context, rows: Strategies, table: LayerTable, stages: Ranges, forward: Floats, backward: Floats
) -> tuple[Floats, Floats]:
    """Return what ZeRO-2 and ZeRO-3 add to each pass of each micro-batch, [N, V]: gradients that are summed in every
    backward pass, and weights that are gathered for passes (`gathers.moved_in_passes`). What follows state to host
    memory travels with them. Weights of a frozen tower are gathered forward alone."""
    if not (rows.sharding >= ZERO2).any():
        zero = np.zeros_like(forward)
        return zero, zero
    groups = stage_groups(context, rows)
    gathered, gather, scatter = _passing_seconds(context, rows, table, stages, groups)
    widths = widths_of(context.job)
    at_first = frozen_on(table, stages)
    overlap_forward, overlap_backward = rows.overlap_param[:, None], rows.overlap_grad[:, None]
    facts = memory_facts(context.job.framework)
    by_option = context.job.options.weights_in_host
    if (facts.gradients_follow and rows.offload.any()) or by_option:
        sizes = groups.dense.size, groups.expert.size
        ends = stages.total(table.ends) / sizes[0]
        kept = stages.total(table.dense) / sizes[0] + stages.total(table.expert) / sizes[1]
        down, up = _host_trips(context, rows, kept, ends + frozen_part(context.job) * (kept - ends))
        scatter, gathered, gather = scatter + down, gathered + up, gather + up
        overlap_backward = overlap_backward & ~_waits_for_host(context, rows)[:, None]
    opened = gathered
    if at_first.any():
        before = both_gather_seconds(context.links, groups, at_first, np.zeros_like(at_first), widths.weight_gather)
        away = facts.weights_follow * rows.offload[:, None] * at_first / groups.dense.size
        before = before + to_host_seconds(context.pool.gpu, widths.weight_gather * away)
        opened = gathered + before * (rows.sharding == ZERO3)[:, None]
    seconds_forward = np.where(overlap_forward, exposed_seconds(opened, BUCKET_SHARE * forward), opened)
    together = gather + scatter
    seconds_backward = np.where(
        overlap_backward & (overlap_forward | (gather == 0.0)),
        exposed_seconds(together, BUCKET_SHARE * backward),
        np.where(
            overlap_backward,
            gather + exposed_seconds(scatter, BUCKET_SHARE * backward),
            together,
        ),
    )
    return seconds_forward, seconds_backward


def _passing_seconds(
    context: Context, rows: Strategies, table: LayerTable, stages: Ranges, groups: DataParallel
) -> tuple[Floats, Floats, Floats]:
    """Return the seconds of gathering weights for a forward pass and for a backward pass, and of summing gradients in
    the latter, [N, V]."""
    job, expert = context.job, stages.total(table.expert)
    first, last = stages.low == 0, stages.high == context.layer_count + 2
    of_position = np.diff(table.dense)
    embedding, head = (np.where(there, of_position[stages.row, at], 0.0) for there, at in ((first, 0), (last, -1)))
    twice = context.model.tied_embeddings * (first & last)
    tied = twice * (context.model.token_table_parameters / rows.tp)[:, None]
    lasting = float(bool(context.model.sharing))
    dense = moved_in_passes(job, rows, stages.total(table.dense), embedding, head, tied, lasting=lasting)
    if job.adapters:
        forward, backward = (
            part + (stages.total(table.adapters) + stages.total(table.expert_adapters)) * (part > 0.0)
            for part in (dense.forward, dense.backward)
        )
        dense = replace(dense, forward=forward, backward=backward)
    experts = moved_in_passes(job, rows, expert, *(3 * [np.zeros_like(expert)]))
    trained, widths = trained_share(context.model, job), widths_of(job)
    sizes = (widths.weight_gather, widths.weight_gather, trained * widths.gradient_reduction)
    forward, backward, summed = (
        size * both_gather_seconds(context.links, groups, getattr(dense, name), getattr(experts, name), 1.0)
        for name, size in zip(("forward", "backward", "summed"), sizes, strict=True)
    )
    return forward * (dense.forward > 0.0), backward * (dense.backward > 0.0), summed * (dense.summed > 0.0)


def frozen_on(table: LayerTable, stages: Ranges) -> Floats:
    """Return the weights of a frozen tower that a GPU of each stage has, [N, V]."""
    return np.where(stages.low == 0, table.frozen[stages.row], 0.0)


def _host_trips(context: Context, rows: Strategies, kept: Floats, stored: Floats) -> tuple[Floats, Floats]:
    """Return what a backward pass adds for gradients that go to host memory, and any pass for weights that come from
    there, [N, V], where a rank keeps `kept` parameters of a stage, of which frozen ones are as large as `stored` are.

    DeepSpeed adds micro-batches up on the GPU: the sum comes and goes, in 16 bits unless told otherwise (runtime/zero/
    stage3.py `partition_grads`, runtime/engine.py `get_data_types` of 0.19.8). FSDP2 sends gradients and fetches
    shards in the type of the optimizer's weights, and adds up on the host (torch/distributed/fsdp/_fully_shard:
    `foreach_reduce`, `all_gather_inputs`)."""
    job, gpu, facts = context.job, context.pool.gpu, memory_facts(context.job.framework)
    widths, trained = widths_of(job), trained_share(context.model, job)
    times = np.where(summed_at_last(job, rows), 1.0 / micro_batches(job, rows), 1.0) * (rows.sharding >= ZERO2)
    there, times = rows.offload[:, None] * kept, times[:, None]
    if not facts.weights_follow:
        width = 4.0 if job.fp32_gradients else 2.0
        trips = to_host_seconds(gpu, times * 2.0 * width * trained * there)
        away = float(job.options.weights_in_host) * (rows.sharding == ZERO3)[:, None]
        return trips, to_host_seconds(gpu, away * widths.weight_gather * stored)
    master = 4.0 if job.masters else widths.weight_gather
    fetched = trained * master * kept + (1.0 - trained) * widths.weight_gather * stored
    added = _waits_for_host(context, rows)[:, None] * HOST_SUM_BYTES * trained * there / host_rate(context)
    down = to_host_seconds(gpu, times * master * trained * there)
    return down + added, to_host_seconds(gpu, ((rows.sharding == ZERO3) * rows.offload)[:, None] * fetched)


def _waits_for_host(context: Context, rows: Strategies) -> Bools:
    """Return which rows add up the gradients of several micro-batches in host memory, which holds up backward passes,
    [N]."""
    several = (micro_batches(context.job, rows) > 1) & ~summed_at_last(context.job, rows)
    follows = memory_facts(context.job.framework).weights_follow
    return np.asarray(follows & several & (rows.offload > 0) & (rows.sharding >= ZERO2))


def both_gather_seconds(links: Fabric, groups: DataParallel, dense: Floats, expert: Floats, width: float) -> Floats:
    """Return the time to gather (or reduce-scatter) dense and expert parameters of `width` bytes over the groups of
    each stage, [N, S]."""
    seconds = gather_seconds(links, groups.dense, width * dense)
    if expert.any():
        seconds = seconds + gather_seconds(links, groups.expert, width * expert)
    return seconds


def transfers(context: Context, rows: Strategies) -> Floats:
    """Return the one-way time from each virtual stage to the next, [N, v * P - 1]. Tensor-parallel ranks each send
    their part (Megatron-LM's scatter-gather)."""
    pp, vpp = int(rows.pp[0]), int(rows.vpp[0])
    links, stride, size = context.links, pipeline_stride(rows), message_bytes(context, rows)[:, None]
    seconds = transfer_seconds(links, size, stage_crossings(links.domain_gpus, pp, stride))
    if links.rack_gpus:
        leaves = stage_crossings(links.rack_gpus, pp, stride)
        seconds = np.maximum(seconds, leaves * rack_seconds(links, size, stride[:, None]))
    return np.tile(seconds, (1, vpp))[:, : vpp * pp - 1]


def pipeline_stride(rows: Strategies) -> Ints:
    """Return the distance between neighbouring ranks of a pipeline, [N]."""
    return np.asarray(rows.tp * rows.cp * np.where(rows.rank_order == DATA_OUTERMOST, 1, rows.dp))


def message_bytes(context: Context, rows: Strategies) -> Floats:
    """Return the bytes of an activation that one GPU sends to the next stage, [N]."""
    width = widths_of(context.job).pipeline
    return np.asarray(width * rows.micro_batch * context.job.sample_tokens / rows.cp / rows.tp * context.model.hidden)


def reduction_tails(
    context: Context, rows: Strategies, times: StageTimes, groups: DataParallel, dense: Floats, expert: Floats
) -> tuple[Floats, Floats]:
    """Return the gradient tail and the weight-gather tail of each pipeline rank, [N, P], whose parameters are held by
    the `groups` of its stage."""
    once = both_gather_seconds(context.links, groups, dense, expert, 1.0)
    return exposed_tails(context.model, context.job, rows, times, once)


def exposed_tails(
    model: Model, job: Job, rows: Strategies, times: StageTimes, once: Floats, waits: Floats | float = 0.0
) -> tuple[Floats, Floats]:
    """Return the gradient tail and the weight-gather tail of each pipeline rank, [N, P], where one byte of each of its
    parameters is gathered in `once` seconds [N, P], and a pass over all of them `waits` as long for distant sites.

    Recomputation hides nothing here: a layer's gradients exist only after it. Where gradients of weights are apart, the
    last of them end on all ranks at about the same time: what runs beside these of a rank itself is hidden, no more.
    """
    trained, widths = trained_share(model, job), widths_of(job)
    sums, gathers = (column[:, None] for column in once_a_step(job, rows))
    reduce = (summed_bytes(job, rows.sharding)[:, None] * trained * once + waits) * sums
    gather = (widths.weight_gather * trained * once + waits) * gathers
    apart = rows.zero_bubble[:, None, None]
    backward = np.where(apart, times.weights, times.backward - times.recompute)
    later = np.where(apart, 0.0, backward)[:, 0]
    return (
        left_over(reduce, backward.sum(axis=1), BUCKET_SHARE * summed_beside(job, rows)[:, None], later),
        left_over(gather, times.forward.sum(axis=1), BUCKET_SHARE * rows.overlap_param[:, None], times.forward[:, 0]),
    )


def optimizer_seconds(context: Context, rows: Strategies, dense: Floats, expert: Floats) -> Floats:
    """Return the time of the optimizer step on each rank, [N, P]: bandwidth-bound on the GPU, and for the part in
    host memory the slower of PCIe traffic and the host's memory, or the latter alone where gradients and weights are
    there already. The two parts run side by side."""
    pool = context.pool
    groups = data_parallel(context, rows)
    held = dense / groups.dense.size[:, None] + expert / groups.expert.size[:, None]
    held = np.where((rows.sharding == UNSHARDED)[:, None], dense + expert, held)
    offload = rows.offload[:, None]
    on_gpu = update_seconds(context, held * (1.0 - offload))
    if paged := paged_width(context.job):
        share = trained_share(context.model, context.job)
        on_gpu = on_gpu + to_host_seconds(pool.gpu, 2.0 * paged * share * held)
    widths, trained = widths_of(context.job), trained_share(context.model, context.job) * held * offload
    by_option = context.job.options.weights_in_host
    passed = widths.gradient_reduction + widths.weight_gather * (not by_option)
    if by_option:  # weights that the GPU updates go back
        share = trained_share(context.model, context.job)
        on_gpu = on_gpu + to_host_seconds(pool.gpu, share * held * (1.0 - offload) * widths.weight_gather)
    there = (rows.sharding == ZERO3)[:, None] & memory_facts(context.job.framework).weights_follow
    moved = np.where(there, 0.0, to_host_seconds(pool.gpu, trained * passed))
    return np.maximum(on_gpu, np.maximum(moved, trained * HOST_STATE_BYTES / host_rate(context)))


def host_rate(context: Context) -> float:
    """Return the bytes a second that updates on the host move for one GPU."""
    pool = context.pool
    return pool.host_memory_bytes_per_second * HOST_EFFICIENCY / pool.gpus_per_node


def update_seconds(context: Context, elements: Floats) -> Floats:
    """Return the time to update parameters on the GPU that holds their state."""
    width = trained_share(context.model, context.job) * update_width(context.job)
    rate = context.pool.gpu.memory_bytes_per_second * UPDATE_EFFICIENCY / context.software.optimizer
    return np.asarray(elements * width / rate)


def norm_seconds(context: Context, rows: Strategies) -> Floats:
    """Return the time to agree on the global gradient norm, one tiny all-reduce over all GPUs, with what the framework
    does once an iteration, [N]."""
    links = context.links
    everyone = group(links, rows.gpus, np.ones_like(rows.tp))
    return reduce_seconds(links, everyone, np.zeros(len(rows))) + context.software.step_seconds


def tied_bytes(context: Context, rows: Strategies) -> Floats:
    """Return the bytes of a GPU's part of the gradients of a tied embedding, [N]."""
    width = trained_share(context.model, context.job) * widths_of(context.job).gradient_reduction
    return np.asarray(width * context.model.token_table_parameters / rows.tp)


def tied_embedding_seconds(context: Context, rows: Strategies, *, apart: bool = False) -> Floats:
    """Return the time to add the gradients of a tied embedding on the first and the last rank, [N]; `apart` says that
    these are never in one domain."""
    if not context.model.tied_embeddings:
        return np.zeros(len(rows))
    crosses = apart | (pipeline_stride(rows) * (rows.pp - 1) >= context.links.domain_gpus)
    size = tied_bytes(context, rows)
    return np.where(rows.pp > 1, transfer_seconds(context.links, size, crosses), 0.0)
