"""Whether strategies fit a GPU: bounds of what they need, and the least recomputation with which they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.context import Context, LayerRows
from shardwright.cost.iteration.footprint import Footprint, footprint, host_bytes, kept_activations, most_kept
from shardwright.cost.iteration.moments import LAST_LAYER, RUNS, Fixed, all_at_once, has_layers, least_message_buffers
from shardwright.cost.iteration.step import data_parallel
from shardwright.cost.memory.ends import head_bytes
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.memory.sizes import (
    least_optimizer_bytes,
    least_state_bytes,
    reserved_bytes,
    room_for_tensors,
    weight_bytes,
)
from shardwright.cost.stage.exact import fewest_layers, leanest_group
from shardwright.cost.stage.terms import AGAIN, WHOLE
from shardwright.cost.strategies import Layouts, Strategies

ROUNDING = 1e-9  # numeric


def least_bytes(context: Context, rows: Strategies, shards: LayerRows, starts: Ints, fixed: Fixed) -> Floats:
    """Return what the fullest rank needs whatever is recomputed, [N]: what is there at each moment beside activations,
    and the least working set of a layer."""
    working = shards.table.live[shards.row, WHOLE][:, None] * has_layers(context.model, rows, starts)
    least = (fixed.moments + working[:, None] * RUNS).max(axis=1)
    gone = np.where(all_at_once(context.job, rows)[:, None], fixed.weights, 0.0)
    tensors = fixed.always - gone + least
    return np.asarray((tensors + reserved_bytes(context.job, tensors)).max(axis=1))


def floor_bytes(
    context: Context, rows: Layouts, dense: Floats, expert: Floats, working: Floats, offloads: Iterable[float]
) -> Floats:
    """Return bytes that every strategy of a layout which fits its host needs on its fullest GPU, [N], infinite where
    none does: the states of the mean rank under the most sharding, with one of the parts `offloads` of the optimizer's
    in host memory, and the working set of a layer, or the logits of the last rank. `dense` and `expert` are parameters
    of the whole model as one GPU of each stage has them."""
    model, job = context.model, context.job
    tied = model.token_table_parameters / rows.tp * model.tied_embeddings
    dense, expert = dense / rows.pp - tied * (rows.pp == 1), expert / rows.pp
    ranks = rows.dp * rows.cp
    copies = np.where(expert > 0, rows.tp * ranks // (rows.ep * rows.etp), 1)
    counts = np.arange(1, max(int(ranks.max(initial=1)), int(copies.max(initial=1))) + 1)  # far fewer than rows
    staying = not memory_facts(job.framework).freed
    whole, cut = (
        least_state_bytes(model, job, counts, np.full(len(counts), alone), gradients=staying) for alone in (False, True)
    )
    least = np.where(rows.pp == 1, (cut[ranks - 1], cut[copies - 1]), (whole[ranks - 1], whole[copies - 1]))
    held = dense * least[0] + expert * least[1] - weight_bytes(job) * (dense + expert) * all_at_once(job, rows)
    updated = dense - tied / rows.pp * (rows.pp > 1)  # of a tied embedding both ends together may have one state
    optimizer = np.full(len(rows), np.inf)
    for part in offloads:
        on_gpu, in_host = (
            updated * least[ranks - 1] + expert * least[copies - 1]
            for least in least_optimizer_bytes(model, job, counts, part)
        )
        fits_host = in_host <= context.pool.host_memory_bytes_per_gpu
        optimizer = np.where(fits_host, np.minimum(optimizer, on_gpu), optimizer)
    able = np.isfinite(optimizer)
    held = held + np.where(able, optimizer, 0.0)
    tensors = np.maximum(held + working, head_bytes(model, job, rows.micro_batch, rows.cp, rows.tp))
    return np.where(able, tensors + reserved_bytes(job, tensors), np.inf)


def most_room(context: Context, rows: Strategies, shards: LayerRows, dense: Floats, expert: Floats) -> Floats:
    """Return the bytes that ranks of so many parameters, [R, N], have at most for kept activations: under the most
    sharding and offload, with gradients in place of activations."""
    table, row, job = shards.table, shards.row, context.job
    groups, everything = data_parallel(context, rows), rows.pp == 1
    state = [
        least_state_bytes(context.model, job, group.size, everything, gradients=False)
        for group in (groups.dense, groups.expert)
    ]
    room = room_for_tensors(job, context.memory_limit_bytes)
    room = room - table.live[row, WHOLE] - least_message_buffers(job, table.boundary[row], rows.pp > 1)
    room = room - table.dummies[row] * ~everything  # which sharded weights have not
    held = state[0] * dense + state[1] * expert
    return np.asarray(room - held + weight_bytes(job) * (dense + expert) * all_at_once(job, rows))


def fits(context: Context, rows: Strategies, shards: LayerRows, starts: Ints, fixed: Fixed) -> Bools:
    """Return whether every rank stays within the GPU's memory and its share of the machine's, [N]."""
    peak = footprint(context, rows, shards, starts, fixed)
    return np.asarray(context.holds(peak.total, peak.in_host).all(axis=1))


def fewest_recomputed_layers(
    context: Context, rows: Strategies, shards: LayerRows, starts: Ints, fixed: Fixed
) -> tuple[Ints, Bools]:
    """Return, for each row, the least --recompute-num-layers with which method `block` fits the GPU, and whether it
    fits the host too, where more of them take more."""

    def on_gpu(count: Ints) -> Bools:
        peak = footprint(context, replace(rows, recompute_layers=count), shards, starts, fixed)
        return np.asarray((peak.total <= context.memory_limit_bytes).all(axis=1))

    count, able = fewest_layers(np.diff(starts, axis=1).max(axis=1), on_gpu)
    taken = host_bytes(context, replace(rows, recompute_layers=count), shards, starts, fixed)
    return count, np.asarray(able & context.holds(0.0, taken).all(axis=1))


def leanest_groups(
    context: Context,
    rows: Strategies,
    shards: LayerRows,
    starts: Ints,
    fixed: Fixed,
    most: float,
    needed: Callable[[Footprint], Floats],
) -> tuple[Ints, Bools]:
    """Return, for each row, the --recompute-num-layers with which method `uniform` has the least `needed` bytes, and
    whether these are finite with at most `most` on a GPU. Its time does not depend on the number; of inputs that go to
    the host larger groups keep fewer. Layers of multi-token prediction run again alone."""
    size, able = np.ones(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool)
    places = np.flatnonzero(_groups_floor(context, rows, shards, starts, fixed) <= most)
    if not len(places):
        return size, able
    rows, shards, starts = rows.take(places), replace(shards, row=shards.row[places]), starts[places]
    fixed = fixed.take(places)

    def of_groups(size: Ints) -> Floats:
        peak = footprint(context, replace(rows, recompute_layers=size), shards, starts, fixed)
        return np.where(peak.total.max(axis=1) <= most, needed(peak), np.inf)

    size[places], least = leanest_group(np.diff(starts, axis=1), bool(context.model.mtp_layers), of_groups)
    able[places] = np.isfinite(least)
    return size, able


def _groups_floor(context: Context, rows: Strategies, shards: LayerRows, starts: Ints, fixed: Fixed) -> Floats:
    """Return bytes that the fullest rank needs under method `uniform` in groups of any size, [N]. Of F bytes that are
    kept where each layer is a group, groups of g keep F / g or more, beside g layers that run again together."""
    table, row = shards.table, shards.row
    longest = np.maximum(np.diff(starts, axis=1).max(axis=1), 1)[:, None]
    group, alone = table.group[row][:, None], replace(rows, recompute_layers=np.ones(len(rows), dtype=np.int64))
    values = kept_activations(context, alone, shards, starts, fixed.micro_batches)
    kept = most_kept(context.job, rows, values, fixed.micro_batches)
    if memory_facts(context.job.framework).stage_buffers:  # what is kept less than inputs is so whatever the groups
        kept = 0.0 * kept
    size = np.clip(np.sqrt(kept / np.maximum(group, 1.0)), 1.0, longest)
    activations = np.maximum(kept / size + group * size + table.live[row, AGAIN][:, None], fixed.closing)
    tensors = fixed.always + fixed.moments[:, LAST_LAYER] + activations
    return np.asarray((tensors + reserved_bytes(context.job, tensors)).max(axis=1)) * (1.0 - ROUNDING)
