"""Peak memory of every pipeline rank of every strategy, and how much recomputation a strategy needs to fit.

Rank i holds its weights, gradients and optimizer state, the activations of the micro-batches in flight there, and
the larger of one layer's working set and (on the last rank) the logits. Arrays are [N, P].
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from shardwright.arrays import Bools, Columns, Floats, Ints, distinct
from shardwright.cost.context import Context, LayerRows
from shardwright.cost.iteration.step import data_parallel, per_rank, ranged, recomputed_layers
from shardwright.cost.memory.sizes import gathered_bytes, logit_bytes, reserved_bytes, state_bytes
from shardwright.cost.pipeline.in_flight import most_live
from shardwright.cost.pipeline.splits import positions
from shardwright.cost.strategies import BLOCK, SELECTIVE, UNIFORM, Strategies

# Activations and gradients that a rank sends and receives at a time: the four tensors of `_communicate` in
# megatron/core/pipeline_parallel/p2p_communication.py.
P2P_BUFFERS = 4  # documented


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of one GPU of each pipeline rank, [N, P], term by term."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    logits: Floats
    buffers: Floats
    context: Floats

    @property
    def total(self) -> Floats:
        return np.asarray(self.tensors + self.context)

    @property
    def tensors(self) -> Floats:
        """What PyTorch counts as allocated: all but the context and fragmentation."""
        return np.asarray(sum(getattr(self, field.name) for field in fields(self) if field.name != "context"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed(Columns):
    """The terms that recomputation does not change, [N, P] in bytes, and the micro-batches of each pipeline, [N].
    `logits` is whole here; in a `Footprint` it is what they need beyond the working set they alternate with."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    logits: Floats
    buffers: Floats
    micro_batches: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameters:
    """Parameters that one GPU of each rank holds before data-parallel sharding, [N, P]; `ends` are those of `dense` in
    embedding and output projection."""

    dense: Floats
    expert: Floats
    ends: Floats


def held_parameters(context: Context, rows: Strategies, shards: LayerRows, starts: Ints) -> HeldParameters:
    """Return the parameters of each rank. A tied output projection is shared where one rank has both ends."""
    where = positions(starts, context.layer_count)
    table, row = shards.table, shards.row
    dense = per_rank(ranged(table.dense, row, where[:, :-1], where[:, 1:]), rows).sum(axis=1)
    expert = per_rank(ranged(table.expert, row, where[:, :-1], where[:, 1:]), rows).sum(axis=1)
    low, high, head = where[:, :-1], where[:, 1:], context.layer_count + 1
    ends = ranged(table.dense, row, np.minimum(low, 1), np.minimum(high, 1))
    ends = per_rank(ends + ranged(table.dense, row, np.maximum(low, head), np.maximum(high, head)), rows).sum(axis=1)
    if context.model.tied_embeddings and rows.pp[0] == 1:
        once = (context.model.token_table_parameters / rows.tp)[:, None]
        dense, ends = dense - once, ends - once
    return HeldParameters(dense=dense, expert=expert, ends=ends)


def micro_batches(context: Context, rows: Strategies) -> Ints:
    """Return the micro-batches of one replica and step, [N]."""
    return context.job.global_batch // (rows.dp * rows.micro_batch)


def states(
    context: Context, rows: Strategies, shards: LayerRows, held: HeldParameters
) -> tuple[Floats, Floats, Floats]:
    """Return weights, gradients and optimizer state, [N, P] each."""
    groups = data_parallel(context, rows)
    two_layers = 2.0 * shards.table.parameters[shards.row]
    found = state_bytes(
        context.job,
        held.dense,
        held.expert,
        groups.dense.size[:, None],
        groups.expert.size[:, None],
        rows.sharding[:, None],
        rows.offload[:, None],
        two_layers[:, None],
        held.ends,
    )
    return found.weights, found.gradients, found.optimizer


def kept_activations(context: Context, rows: Strategies, shards: LayerRows, starts: Ints) -> Floats:
    """Return the bytes that one micro-batch leaves on each virtual stage until its backward pass, [N, v, P]."""
    table, row = shards.table, shards.row
    where = positions(starts, context.layer_count)
    low, high = where[:, :-1], where[:, 1:]
    first, last = starts[:, :-1] + 1, recomputed_layers(rows, starts) + 1
    kept = ranged(table.activations, row, low, high)
    kept -= np.where((rows.recompute == SELECTIVE)[:, None], ranged(table.core, row, low, high), 0.0)
    freed = ranged(table.activations, row, first, last) - checkpoints(rows, shards, first, last)
    return np.asarray(per_rank(kept - freed, rows))


def checkpoints(rows: Strategies, shards: LayerRows, first: Ints, last: Ints) -> Floats:
    """Return the inputs that full recomputation keeps: one for each layer with `block`, one for each group of
    `recompute_layers` layers with `uniform`, [N, V]."""
    inputs = ranged(shards.table.inputs, shards.row, first, last)
    size = np.maximum(rows.recompute_layers, 1)[:, None]
    count = np.maximum(last - first, 1)
    grouped = inputs * (-(-count // size)) / count
    return np.where((rows.recompute == UNIFORM)[:, None], grouped, inputs)


def working_set(rows: Strategies, shards: LayerRows, starts: Ints) -> Floats:
    """Return the bytes that are live beside the kept activations while a layer runs backward: the gradients of its
    activations and, where it is recomputed, the activations themselves, [N, P]."""
    mode = rows.recompute[:, None]
    longest = per_rank(np.diff(starts, axis=1), rows).max(axis=1)
    again = np.where(mode == UNIFORM, np.minimum(rows.recompute_layers[:, None], longest), mode == BLOCK)
    widest, repeated, gradients = (
        column[shards.row][:, None] for column in (shards.table.widest, shards.table.repeated, shards.table.gradients)
    )
    return np.asarray(widest * again + repeated * (mode == SELECTIVE) + gradients)


def fixed_bytes(context: Context, rows: Strategies, shards: LayerRows, starts: Ints) -> Fixed:
    """Return the part of the footprint on which recomputation has no influence."""
    held = held_parameters(context, rows, shards, starts)
    weights, gradients, optimizer = states(context, rows, shards, held)
    boundary = shards.table.boundary[shards.row][:, None]
    logits = np.zeros_like(weights)
    logits[:, -1] = logit_bytes(context.model, context.job, rows.micro_batch, rows.cp, rows.tp)
    gathered = gathered_bytes(context.model, context.job, rows.micro_batch, rows.cp, rows.tp, rows.pp)[:, None]
    return Fixed(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        logits=logits,
        buffers=np.broadcast_to(P2P_BUFFERS * boundary * (rows.pp > 1)[:, None] + gathered, weights.shape),
        micro_batches=micro_batches(context, rows),
    )


def footprint(
    context: Context, rows: Strategies, shards: LayerRows, starts: Ints, fixed: Fixed | None = None
) -> Footprint:
    """Return the peak of each rank. All rows have equal pp and vpp. `fixed` is what `fixed_bytes` returns for them."""
    fixed = fixed or fixed_bytes(context, rows, shards, starts)
    working = working_set(rows, shards, starts)
    activations = most_live(kept_activations(context, rows, shards, starts), fixed.micro_batches) + working
    logits = np.maximum(fixed.logits - working, 0.0)
    tensors = fixed.weights + fixed.gradients + fixed.optimizer + activations + logits + fixed.buffers
    return Footprint(
        weights=fixed.weights,
        gradients=fixed.gradients,
        optimizer=fixed.optimizer,
        activations=activations,
        logits=logits,
        buffers=fixed.buffers,
        context=reserved_bytes(context.job, tensors),
    )


def least_bytes(context: Context, shards: LayerRows, fixed: Fixed) -> Floats:
    """Return what the fullest rank needs whatever is recomputed, [N]: states, buffers and one layer's gradients or
    the logits."""
    working = np.maximum(shards.table.gradients[shards.row][:, None], fixed.logits)
    tensors = fixed.weights + fixed.gradients + fixed.optimizer + fixed.buffers + working
    return np.asarray((tensors + reserved_bytes(context.job, tensors)).max(axis=1))


def fits(context: Context, rows: Strategies, shards: LayerRows, starts: Ints, fixed: Fixed) -> Bools:
    """Return whether every rank stays within the GPU's memory, [N]."""
    peak = footprint(context, rows, shards, starts, fixed).total
    return np.asarray((peak <= context.memory_limit_bytes).all(axis=1))


def fewest_recomputed_layers(
    context: Context, rows: Strategies, shards: LayerRows, starts: Ints, fixed: Fixed
) -> tuple[Ints, Bools]:
    """Return, for each row, the least --recompute-num-layers with which method `block` fits, and whether any does.

    Memory falls and time grows with the number, so the least is the best. Bisection over 1 … layers of the longest
    virtual stage.
    """
    low = np.ones(len(rows), dtype=np.int64)
    high = np.maximum(np.diff(starts, axis=1).max(axis=1), 1)
    possible = fits(context, replace(rows, recompute_layers=high), shards, starts, fixed)
    high = np.where(possible, high, low)
    while (low < high).any():
        middle = (low + high) // 2
        enough = fits(context, replace(rows, recompute_layers=middle), shards, starts, fixed)
        high = np.where(enough, middle, high)
        low = np.where(enough, low, np.minimum(middle + 1, high))
    return high, possible


def leanest_group(
    context: Context, rows: Strategies, shards: LayerRows, starts: Ints, fixed: Fixed
) -> tuple[Ints, Bools]:
    """Return, for each row, the --recompute-num-layers with which method `uniform` needs least memory, and whether it
    fits. Its time does not depend on the number; ties go to the smaller one."""
    lengths = distinct(np.diff(starts, axis=1))
    if context.model.mtp_layers:
        lengths = lengths[:0]  # layers of multi-token prediction are recomputed in groups of one only
    # Of all numbers that make equally many groups of a virtual stage, the least is the leanest.
    sizes = sorted({-(-int(length) // groups) for length in lengths for groups in range(1, int(length) + 1)} | {1})
    best = np.ones(len(rows), dtype=np.int64)
    least = np.full(len(rows), np.inf)
    for layers in sizes:
        size = np.full(len(rows), layers, dtype=np.int64)
        peak = footprint(context, replace(rows, recompute_layers=size), shards, starts, fixed).total.max(axis=1)
        best = np.where(peak < least, layers, best)
        least = np.minimum(peak, least)
    return best, least <= context.memory_limit_bytes
