"""Bounds of an arrangement in a few operations, from its first, middle and last stages alone; and of a layout before.

Every bound here is of the kind of `cost.pipeline.bound`, at one rank or averaged over ranks, with sums over stages in
closed form instead of stage by stage. Time includes the least recomputation without which rank 0 or 1 cannot fit
under any sharding, and the least tail that gradients and the optimizer leave on rank 0. Where layers differ, the
bounds of those ranks count whose layers are alike.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.arrays import Floats, Ints, bits_of, packed
from shardwright.cost.context import Context, LayerRows, ShardIndex
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.gathers import micro_batches, summed_at_last
from shardwright.cost.iteration.orthogonalisation import orthogonalisation_seconds
from shardwright.cost.iteration.room import floor_bytes, most_room
from shardwright.cost.iteration.step import (
    BUCKET_SHARE,
    StageTimes,
    both_gather_seconds,
    message_bytes,
    norm_seconds,
    optimizer_seconds,
    pipeline_stride,
    reduction_tails,
    stage_groups,
    tied_embedding_seconds,
)
from shardwright.cost.memory.sizes import HeldParameters, trained_share
from shardwright.cost.network.collectives import OVERLAP_SLOWDOWN, exposed_seconds, rack_seconds, transfer_seconds
from shardwright.cost.pipeline.in_flight import in_flight
from shardwright.cost.stage.relaxed import fewest_repeated
from shardwright.cost.stage.terms import WHOLE
from shardwright.cost.strategies import UNSHARDED, ZERO1, ZERO2, ZERO3, Layouts, Strategies
from shardwright.records import record
from shardwright.search.space.axes import offload_fractions, schedules
from shardwright.search.space.expand import Axes, layer_variants


@record(kw_only=False)
class _Split:
    """How the layers fall on the virtual stages, [N]: those between first and last have `share` layers, the last
    `extra` of them one more; `on_first`, `on_last`, `on_next` are the larger ones of ranks 0, P - 1 and P - 2."""

    first: Ints
    last: Ints
    share: Ints
    middle: Ints
    on_first: Ints
    on_last: Ints
    on_next: Ints


def sketch_seconds(context: Context, rows: Strategies, shards: LayerRows) -> Floats:
    """Return a lower bound of the iteration of every completion of `rows`, [N]. Rows may differ in shape."""
    split = _split(context, rows)
    layers = _layers_to_recompute(context, rows, shards, split)
    pipeline = _pipeline(context, rows, shards, split, layers)
    tail = _tail(context, rows, shards, split)
    return pipeline + tail + norm_seconds(context, rows) + tied_embedding_seconds(context, rows)


def _split(context: Context, rows: Strategies) -> _Split:
    pp, vpp = rows.pp, rows.vpp
    stages = pp * vpp
    between = context.layer_count - rows.first_layers - rows.last_layers
    middle = np.maximum(stages - 2, 0)
    share, extra = np.divmod(between, np.maximum(middle, 1))

    def larger(first_chunk: Ints, chunks: Ints) -> Ints:
        """Count the chunks k < `chunks` that are among the larger, those with k >= first_chunk / pp."""
        return np.asarray(np.clip(chunks - np.maximum(-(-first_chunk // pp), 0), 0, chunks))

    return _Split(
        first=rows.first_layers,
        last=rows.last_layers,
        share=share,
        middle=middle,
        on_first=np.where(vpp > 1, larger(stages - 1 - extra, vpp), 0),
        on_last=np.where(vpp > 1, np.minimum(larger(stages - pp - extra, vpp - 1), vpp - 1), 0),
        on_next=np.where(vpp > 1, larger(stages + 1 - pp - extra, vpp), 0),
    )


def _sum(running: Floats, row: Ints, start: Ints | int, end: Ints | int) -> Floats:
    return np.asarray(running[row, end] - running[row, start])


def _pipeline(context: Context, rows: Strategies, shards: LayerRows, split: _Split, layers: Ints) -> Floats:
    """Return a bound of the pipeline's time with `layers` layers of each virtual stage recomputed."""
    table, row, count = shards.table, shards.row, micro_batches(context.job, rows)
    ends = context.layer_count + 2
    running = table.forward + table.backward
    again = _sum(table.forward, row, 1, ends - 1) / context.layer_count
    first = _sum(running, row, 0, split.first + 1) + np.minimum(layers, split.first) * again
    last = _sum(running, row, ends - 1 - split.last, ends) + np.minimum(layers, split.last) * again
    whole = running[row, ends]
    between = whole - _sum(running, row, 0, split.first + 1) - _sum(running, row, ends - 1 - split.last, ends)
    between = between + split.middle * np.minimum(layers, split.share) * again
    single = rows.pp == 1
    first = np.where(single, whole + np.minimum(layers, split.first) * again, first)
    share = np.where(rows.overlap_pp, OVERLAP_SLOWDOWN, 1.0)
    move = np.where(single, 0.0, share * _transfer_range(context, rows)[0])
    launch = 2.0 * context.software.pass_seconds
    first, last = first + move + launch, last + move + launch
    between = between + (2.0 * move + launch) * split.middle
    whole = np.where(single, first, first + between + last)
    regular = _sum(running, row, ends - 2, ends - 1)
    cheapest = np.diff(running[:, 1:-1], axis=1).min(axis=1)[row]
    alike = context.alike_after
    chunk = split.share * regular + np.minimum(layers, split.share) * again + 2.0 * move + launch
    cheap = split.share * cheapest + np.minimum(layers, split.share) * again + 2.0 * move + launch
    simple = _one_stage_bound(rows, split, alike, count, first, last, between, whole)
    virtual = _virtual_bound(rows, split, alike, count, first, last, regular, chunk, cheap, whole)
    bound = np.where(single, count * first, np.where(rows.vpp == 1, simple, virtual))
    if rows.zero_bubble.any():
        # A rank's work, and the mean rank's after the first forward passes: gradients of weights may fill all gaps.
        before = (rows.pp - 1) / rows.pp * _sum(table.forward, row, 0, split.first + 1)
        apart = np.maximum(np.maximum(count * first, count * last), count * whole / rows.pp + before)
        bound = np.where(rows.zero_bubble, apart, bound)
    return bound


def _one_stage_bound(
    rows: Strategies,
    split: _Split,
    alike: int,
    count: Ints,
    first: Floats,
    last: Floats,
    between: Floats,
    whole: Floats,
) -> Floats:
    """Return the bound for one virtual stage a rank: at the last rank, at the first, the mean over those between, and
    the mean rank's work with the way to it. The third gains its gaps where the layers between are `alike`.

    With t_i the work of rank i and w_i = P - 1 - i its warm-up, rank i ends no sooner than
    K t_i + (t_0 + … + t_(i-1)) + [2 (t_(i+1) + …) - w_i t_i]^+. Averaged over the middle ranks, whose t do not fall
    with i, this is at least K m + t_0 + 2 t_(P-1) + (P - 4) m with m their mean.
    """
    pp = rows.pp
    enough = count > pp
    warmup = np.minimum(pp - 1, count - 1)
    gap = np.maximum(2.0 * (whole - first) - warmup * first, 0.0) * np.where(enough, 1.0, 0.5)
    mean = between / np.maximum(pp - 2, 1)
    regular = enough & (split.first >= alike)
    middle = count * mean + first + np.where(regular, 2.0 * last + (pp - 4) * mean, 0.0)
    every = count * whole / pp + first * (pp - 1) / pp
    bound = np.maximum(np.maximum(whole + (count - 1) * last, count * first + gap), every)
    return np.asarray(np.maximum(bound, np.where(pp > 2, middle, 0.0)))


def _virtual_bound(
    rows: Strategies,
    split: _Split,
    alike: int,
    count: Ints,
    first: Floats,
    last: Floats,
    layer: Floats,
    chunk: Floats,
    cheap: Floats,
    whole: Floats,
) -> Floats:
    """Return the bound for interleaved stages: work of ranks P - 1, P - 2 and 0, each with the way of the first
    micro-batch to it and of the last one back, and of the mean rank. A rank counts whose layers are all `alike` (rank 0
    but for its first stage); `cheap` is the time of a stage with the cheapest layers."""
    pp, vpp = rows.pp, rows.vpp
    at_last = count * ((vpp - 1) * chunk + split.on_last * layer + last) + first + (pp - 2) * cheap
    at_next = count * (vpp * chunk + split.on_next * layer) + first + (pp - 3) * cheap
    at_first = count * (first + (vpp - 1) * chunk + split.on_first * layer)
    mean = count * whole / pp + first * (pp - 1) / pp
    before_last = split.first + (pp - 2) * split.share
    bound = np.maximum(mean, np.where(before_last >= alike, at_last, 0.0))
    bound = np.maximum(bound, np.where((pp > 2) & (before_last - split.share >= alike), at_next, 0.0))
    return np.maximum(bound, np.where(split.first + (pp - 1) * split.share >= alike, at_first, 0.0))


def _transfer_range(context: Context, rows: Strategies) -> tuple[Floats, Floats]:
    """Return the shortest and the longest that a one-way transfer between neighbouring ranks may take, [N]: all leave
    their domain if the stride does, else some."""
    links, size = context.links, message_bytes(context, rows)
    outside = transfer_seconds(links, size, np.ones(len(rows), dtype=bool))
    inside = transfer_seconds(links, size, pipeline_stride(rows) >= links.domain_gpus)
    longest = np.maximum(np.maximum(inside, outside), rack_seconds(links, size, pipeline_stride(rows)))
    return np.minimum(inside, outside), longest


def _layers_to_recompute(context: Context, rows: Strategies, shards: LayerRows, split: _Split) -> Ints:
    """Return how many layers of a virtual stage must be recomputed at least for ranks 0 and 1 to fit under the most
    sharding and offload; 0 where selective recomputation may do."""
    if context.alike_after > 0:
        return np.zeros(len(rows), dtype=np.int64)
    table, row = shards.table, shards.row
    kept = table.kept[row, :, 2] - table.kept[row, :, 1]
    dense, expert, embedding = _sum(table.dense, row, 1, 2), _sum(table.expert, row, 1, 2), _sum(table.dense, row, 0, 1)
    count, fewest = micro_batches(context.job, rows), np.zeros(len(rows), dtype=np.int64)
    held = np.stack([split.first + (rows.vpp - 1) * split.share + split.on_first, split.share])
    rooms = most_room(context, rows, shards, dense * held + np.stack([embedding, 0.0 * embedding]), expert * held)
    for rank, room in enumerate(rooms):
        flying = in_flight(rows.pp, rows.vpp, count, rank)
        live = _live_layers(rows, split, flying) if rank == 0 else flying * split.share
        exists = (rows.vpp == 1) & (rows.pp > 2) | (rank == 0)
        fewest = np.maximum(fewest, np.where(exists, fewest_repeated(kept, table.group[row], live, flying, room), 0))
    return fewest


def _live_layers(rows: Strategies, split: _Split, flying: Ints) -> Ints:
    """Return the layers of which rank 0 holds activations before its first backward pass, counted for each micro-batch,
    [N], where it holds those of `flying` passes through its virtual stages."""
    rounds, rest = np.divmod(flying, rows.pp * rows.vpp)
    first = rounds * rows.pp + np.minimum(rest, rows.pp)
    return np.asarray(first * split.first + (flying - first) * split.share + rows.pp * split.on_first)


def _tail(context: Context, rows: Strategies, shards: LayerRows, split: _Split) -> Floats:
    """Return the least that gradients and the optimizer of rank 0 add under any sharding and offload."""
    table, row = shards.table, shards.row
    slowdown = OVERLAP_SLOWDOWN * _transfer_range(context, rows)[1] * rows.vpp * rows.overlap_pp
    ends = context.layer_count + 2
    top = np.where(rows.pp == 1, ends, split.first + 1)
    more = (rows.vpp - 1) * split.share + split.on_first

    def on_rank(running: Floats, pick: np.ufunc) -> Floats:
        # The layers of later virtual stages lie anywhere in the model; of unequal layers the cheapest bound counts.
        before = running[:, 1:2] if context.alike_after == 0 else running[:, 1:-2]
        after = running[:, 2:3] if context.alike_after == 0 else running[:, 2:-1]
        per_layer = pick.reduce(after - before, axis=1)[row]
        return np.asarray((_sum(running, row, 0, top) + more * per_layer)[:, None])

    dense, expert = on_rank(table.dense, np.minimum), on_rank(table.expert, np.minimum)
    at_ends = _sum(table.ends, row, 0, 1) + (rows.pp == 1) * _sum(table.ends, row, ends - 1, ends)
    if context.model.tied_embeddings:
        once = context.model.token_table_parameters / rows.tp * (rows.pp == 1)
        dense, at_ends = dense - once[:, None], at_ends - once
    held = HeldParameters(dense=dense, expert=expert, ends=at_ends[:, None])
    slowdown = slowdown + context.software.pass_seconds * rows.vpp
    forward = (on_rank(table.forward, np.maximum) + slowdown[:, None])[:, None]
    backward = (on_rank(table.backward, np.maximum) + slowdown[:, None])[:, None]
    nothing = np.zeros_like(forward)
    times = StageTimes(forward=forward, backward=backward, recompute=nothing, weights=nothing)
    least = np.full(len(rows), np.inf)
    for sharding in (UNSHARDED, ZERO1):
        code = np.full(len(rows), sharding, dtype=np.int64)
        overlap = np.ones(len(rows), dtype=bool)
        # Beside gradients of weights that are apart no more is hidden than beside whole backward passes.
        off = np.zeros(len(rows), dtype=bool)
        given = replace(
            rows,
            sharding=code,
            overlap_grad=overlap,
            overlap_param=overlap & (sharding == ZERO1),
            zero_bubble=off,
        )
        reduce, gather = reduction_tails(context, given, times, stage_groups(context, given), dense, expert)
        on_gpu = optimizer_seconds(context, given, dense, expert)[:, 0]
        least_moved = replace(given, offload=np.ones(len(rows)), sharding=np.full(len(rows), ZERO3))
        in_host = optimizer_seconds(context, least_moved, dense, expert)[:, 0]
        update = on_gpu if sharding == UNSHARDED else on_gpu * in_host / np.maximum(on_gpu + in_host, 1e-300)
        update = update + orthogonalisation_seconds(context, given, held)[:, 0]
        least = np.minimum(least, (reduce + gather)[:, 0] + update)
        if sharding == ZERO1:
            alone = _fully_sharded(context, given, times, dense, expert) + update
            least = np.where(rows.pp == 1, np.minimum(least, alone), least)
    return least


def _fully_sharded(context: Context, rows: Strategies, times: StageTimes, dense: Floats, expert: Floats) -> Floats:
    """Return the least that ZeRO-2 adds on a rank (ZeRO-3 adds more): a reduce-scatter in each micro-batch, or in the
    last one alone."""
    width = trained_share(context.model, context.job) * widths_of(context.job).gradient_reduction
    once = both_gather_seconds(context.links, stage_groups(context, rows), dense, expert, width)[:, 0]
    exposed = exposed_seconds(once, BUCKET_SHARE * times.backward[:, 0, 0])
    sharded = replace(rows, sharding=np.full(len(rows), ZERO2))
    count = np.where(summed_at_last(context.job, sharded), 1, micro_batches(context.job, rows))
    return np.asarray(count * exposed)


def distinct_shards(rows: Layouts) -> Layouts:
    """Return one layout for each distinct way to shard a layer."""
    return rows.take(np.unique(_shard_keys(rows), return_index=True)[1])


def _shard_keys(rows: Layouts) -> Ints:
    columns = [rows.tp, rows.cp, rows.ep, rows.etp, rows.micro_batch]
    return packed(columns, bits_of(columns))


def _least(context: Context, how: Axes, rows: Layouts, index: ShardIndex, per_shard: Floats) -> Floats:
    """Return, for each layout, the least of `per_shard` over the settings of its switches, [N]."""
    distinct = distinct_shards(rows)
    variants, of = layer_variants(context, how, distinct)
    least = np.full(len(distinct), np.inf)
    np.minimum.at(least, of, per_shard[index.of(variants).row])
    return least[np.searchsorted(_shard_keys(distinct), _shard_keys(rows))]  # of the same values, so of the same bits


def layout_bounds(context: Context, how: Axes, rows: Layouts, index: ShardIndex) -> Floats:
    """Return a lower bound of the iteration of every strategy of each layout, [N].

    With W the work of one micro-batch on all P ranks, some rank works W/P or more for each of K micro-batches, and
    `filling` adds what the ranks must wait.
    """
    work = _least(context, how, rows, index, index.table.forward[:, -1] + index.table.backward[:, -1])
    count = context.job.global_batch // (rows.dp * rows.micro_batch)
    if context.alike_after > 0:
        return np.asarray(work / rows.pp * count)
    running = index.table.forward + index.table.backward
    layer = _least(context, how, rows, index, running[:, 2] - running[:, 1])
    return np.asarray(work / rows.pp * count + filling_seconds(context, how, rows, count, work, layer))


def filling_seconds(context: Context, how: Axes, rows: Layouts, count: Ints, work: Floats, layer: Floats) -> Floats:
    """Return what any split of equal layers must wait beyond the mean rank's work, [N].

    Where zero bubble is among them, nothing. 1F1B with K >= P + 2: three bounds of `uniform.bounds` hold together, with
    t_0, m, t_l the work of the first, a middle and the last rank,

        T >= (K + P - 4) m + t_0 + 2 t_l,   T >= W + (K - 1) t_l,   T >= (K - P + 1) t_0 + 2 (W - t_0);

    weighted with 1 - y - z, z = (c - 2) / (K - 2) and y = (c - 1) / (K - P), they give T >= c W with
    c = (K + P - 1) / P, whatever t_0 and t_l. Interleaved: rank r begins after the first stages of the ranks before
    it, and the mean over r counts.
    """
    if 1 in schedules(context, how.space):
        return np.zeros(len(rows))
    pp, vpp = rows.pp, rows.vpp
    plain = np.where(count >= pp + 2, (pp - 1) / pp * work, 0.0)
    if {"first_layers", "last_layers"} & set(how.space.pins):
        return np.where(vpp == 1, plain, 0.0)
    stages = pp * vpp
    share = context.layer_count // stages
    least = np.maximum((context.layer_count - 2 * (share + 1)) // np.maximum(stages - 2, 1), 0)
    return np.where(vpp == 1, plain, least * layer * (pp - 1) * (pp - 2) / (2.0 * pp))


def memory_floor(context: Context, how: Axes, rows: Layouts, index: ShardIndex) -> Floats:
    """Return bytes that every strategy of each layout which fits its host needs on its fullest GPU, [N]; infinite where
    it has none."""
    table = index.table
    columns = (table.dense[:, -1], table.expert[:, -1], table.live[:, WHOLE], table.dummies)
    least = [_least(context, how, rows, index, column) for column in columns]
    able = np.isfinite(least[0])
    dense, expert, working, dummies = (np.where(able, column, 0.0) for column in least)
    working = working + dummies * (rows.pp > 1)  # which sharded weights have not
    offloads = {part for sharded in (False, True) for part in offload_fractions(how.space, sharded=sharded)}
    return np.where(able, floor_bytes(context, rows, dense, expert, working, sorted(offloads)), np.inf)
