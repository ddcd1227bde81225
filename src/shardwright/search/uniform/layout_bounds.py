"""What can be said of a layout before it is expanded: time and memory that none of its strategies can go below."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats, Ints, bits_of, packed
from shardwright.cost.context import Context, ShardIndex
from shardwright.cost.memory.sizes import head_bytes, least_state_bytes, reserved_bytes
from shardwright.cost.stage.terms import WHOLE
from shardwright.cost.strategies import Layouts
from shardwright.search.space.expand import Axes, layer_variants


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

    1F1B with K >= P + 2: three bounds of `uniform.bounds` hold together, with t_0, m, t_l the work of the first, a
    middle and the last rank,

        T >= (K + P - 4) m + t_0 + 2 t_l,   T >= W + (K - 1) t_l,   T >= (K - P + 1) t_0 + 2 (W - t_0);

    weighted with 1 - y - z, z = (c - 2) / (K - 2) and y = (c - 1) / (K - P), they give T >= c W with
    c = (K + P - 1) / P, whatever t_0 and t_l. Interleaved: rank r begins after the first stages of the ranks before
    it, and the mean over r counts.
    """
    pp, vpp = rows.pp, rows.vpp
    plain = np.where(count >= pp + 2, (pp - 1) / pp * work, 0.0)
    if {"first_layers", "last_layers"} & set(how.space.pins):
        return np.where(vpp == 1, plain, 0.0)
    stages = pp * vpp
    share = context.layer_count // stages
    least = np.maximum((context.layer_count - 2 * (share + 1)) // np.maximum(stages - 2, 1), 0)
    return np.where(vpp == 1, plain, least * layer * (pp - 1) * (pp - 2) / (2.0 * pp))


def memory_floor(context: Context, how: Axes, rows: Layouts, index: ShardIndex) -> Floats:
    """Return bytes that every strategy of each layout needs on its fullest GPU, [N]: the mean rank's states under the
    most sharding and offload with one layer's gradients, or the last rank's logits."""
    table, job = index.table, context.job
    dense = _least(context, how, rows, index, table.dense[:, -1]) / rows.pp
    if context.model.tied_embeddings:
        dense = dense - context.model.token_table_parameters / rows.tp * (rows.pp == 1)
    ranks = rows.dp * rows.cp
    held = dense * least_state_bytes(context.model, job, ranks, rows.pp == 1)
    if table.expert.any():
        copies = rows.tp * ranks // (rows.ep * rows.etp)
        expert = _least(context, how, rows, index, table.expert[:, -1]) / rows.pp
        held = held + expert * least_state_bytes(context.model, job, copies, rows.pp == 1)
    working = _least(context, how, rows, index, table.live[:, WHOLE])
    logits = head_bytes(context.model, job, rows.micro_batch, rows.cp, rows.tp)
    tensors = np.maximum(held + working, logits)
    return np.asarray(tensors + reserved_bytes(job, tensors))
