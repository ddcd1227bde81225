"""Peak memory of every pipeline rank of every strategy.

Rank i holds its weights, gradients and optimizer state, the activations of the micro-batches in flight there, and
the larger of one layer's working set and (on the last rank) the logits. Arrays are [N, P].
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.context import Context, LayerRows
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.moments import (
    EMBEDDING,
    KEPT,
    LAST_LAYER,
    LAYERS,
    LOGITS,
    MORE,
    REFERENCE,
    RUNS,
    Fixed,
    all_at_once,
    fixed_bytes,
    has_layers,
    put_off,
)
from shardwright.cost.layers.table import running_sums
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.memory.kept import autocast_bytes
from shardwright.cost.memory.sizes import SINGLE, gradient_bytes, reserved_bytes, under_autocast, weight_bytes
from shardwright.cost.pipeline.in_flight import live_at_end, most_live
from shardwright.cost.stage.exact import (
    in_host_bytes,
    kept_bytes,
    last_kept_bytes,
    live_bytes,
    of_pipelines,
    per_rank,
)
from shardwright.cost.stage.terms import STATES
from shardwright.cost.strategies import UNSHARDED, Strategies
from shardwright.records import record
from shardwright.spec.job import Job


@record
class Footprint:
    """Bytes of one GPU of each pipeline rank, [N, P], term by term, and those of host memory that it takes."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    logits: Floats
    buffers: Floats
    context: Floats
    in_host: Floats

    @property
    def total(self) -> Floats:
        return np.asarray(self.tensors + self.context)

    @property
    def tensors(self) -> Floats:
        """What PyTorch counts as allocated: all but the context and fragmentation."""
        beside = ("context", "in_host")
        return np.asarray(sum(getattr(self, field.name) for field in fields(self) if field.name not in beside))


def kept_activations(context: Context, rows: Strategies, shards: LayerRows, starts: Ints, count: Ints) -> Floats:
    """Return the bytes that one of `count` micro-batches [N] leaves on each virtual stage until its backward pass,
    [N, v, P]."""
    stages = of_pipelines(shards.row, starts, context.layer_count)
    kept = kept_bytes(shards.table.kept, stages, rows.recompute[:, None], rows.recompute_layers[:, None])
    if memory_facts(context.job.framework).stage_buffers:
        kept = kept + shards.table.boundary[shards.row][:, None] * _outputs_beyond_inputs(context.job, kept.shape[1])
    kept[:, -1] += shards.table.before_logits[shards.row] * put_off(context.job, rows, count)
    if (copies := _autocast_copies(context, rows)) is not None:
        of_all = replace(stages, row=np.zeros_like(stages.row))
        modes = rows.recompute[:, None], rows.recompute_layers[:, None]
        kept = kept + copies.elements[:, None] * kept_bytes(copies.kept, of_all, *modes)
    kept = np.maximum(kept, 0.0)  # what layers do not keep before all adapters is the embedding's, which may be alone
    return np.asarray(per_rank(kept, int(rows.vpp[0])))


@record
class _Copies:
    """Bytes for each of the `elements` [N] of a hidden state of rows: `kept` running sums by state [1, 3, L + 3], and
    those of the largest layer that runs again, `group` [1], as layer tables have them."""

    elements: Floats
    kept: Floats
    group: Floats


def _autocast_copies(context: Context, rows: Strategies) -> _Copies | None:
    """Return what autocast keeps beyond the formulas where weights are whole and some in fp32 (`autocast_bytes`); None
    where none are. Beside masters the inputs of layers that run again, and the ends, are in fp32."""
    job, model, whole = context.job, context.model, rows.sharding == UNSHARDED
    if not whole.any() or not (under_autocast(job) or (memory_facts(job.framework).buckets and job.adapters)):
        return None
    layers = np.array([autocast_bytes(model, layer, job) for layer in model.layers])
    wide = (SINGLE - widths_of(job).saved) * (not job.adapters)
    by_state = np.stack([np.pad(part, 1, constant_values=wide) for part in (layers, layers, 0.0 * layers + wide)])
    elements = rows.micro_batch * job.sample_tokens / rows.cp * model.hidden * whole
    return _Copies(elements=elements, kept=running_sums(by_state[None]), group=layers.max(keepdims=True))


def _outputs_beyond_inputs(job: Job, stages: int) -> Ints:
    """Return how many messages of a micro-batch more each of so many virtual stages keeps where it keeps what it gives,
    and its input is in a buffer (`message_buffers`)."""
    stage, on_gpu = np.arange(stages), job.options.activation_offload != "inputs"
    return np.asarray((stage < stages - 1).astype(int) - (stage > 0) * on_gpu)


def _last_kept(context: Context, rows: Strategies, shards: LayerRows, starts: Ints) -> Floats:
    """Return what the last layer of a rank keeps of one micro-batch until its backward pass has ended, [N, P]."""
    stages = of_pipelines(shards.row, starts, context.layer_count)
    kept = last_kept_bytes(shards.table.kept, stages, rows.recompute[:, None], rows.recompute_layers[:, None])
    return np.asarray(per_rank(kept, int(rows.vpp[0]))[:, -1])


def working_set(context: Context, rows: Strategies, shards: LayerRows, starts: Ints) -> Floats:
    """Return the bytes that are live beside the kept activations while a layer of a rank runs backward, [N, P]."""
    table, longest = shards.table, per_rank(np.diff(starts, axis=1), int(rows.vpp[0])).max(axis=1)
    mode, count = rows.recompute[:, None], rows.recompute_layers[:, None]
    live = live_bytes(table.live, table.group, shards.row[:, None], mode, count, longest)
    if (copies := _autocast_copies(context, rows)) is not None:
        none, of_all = np.zeros((1, STATES)), np.zeros_like(shards.row[:, None])
        live = live + copies.elements[:, None] * live_bytes(none, copies.group, of_all, mode, count, longest)
    return np.where(has_layers(context.model, rows, starts), live, 0.0)


def footprint(
    context: Context, rows: Strategies, shards: LayerRows, starts: Ints, fixed: Fixed | None = None
) -> Footprint:
    """Return the peak of each rank. All rows have equal pp and vpp. `fixed` is what `fixed_bytes` returns for them.

    What the fullest moment has beyond running layers is told as that of logits, or as weights of a reference."""
    fixed = fixed or fixed_bytes(context, rows, shards, starts)
    working = working_set(context, rows, shards, starts)
    if fixed.closing.any():
        working = working + fixed.waiting * shards.table.halfway[shards.row][:, None]
        working = np.maximum(working, fixed.closing - _last_kept(context, rows, shards, starts))
    values = kept_activations(context, rows, shards, starts, fixed.micro_batches)
    kept = most_kept(context.job, rows, values, fixed.micro_batches)
    of_layers = kept[:, None] * (KEPT + np.minimum(MORE, context.layer_count) / context.layer_count)
    there = fixed.moments + of_layers + working[:, None] * RUNS
    at_last = _kept_at_end(context.job, rows, values, fixed.micro_batches, last=True)
    there[:, [LOGITS, REFERENCE], -1] += at_last[:, None]
    opens = np.flatnonzero(there[:, EMBEDDING, 0] + kept[:, 0] > there[:, LAST_LAYER, 0])  # else it is no peak
    if len(opens):
        first = rows.take(opens), values[opens], fixed.micro_batches[opens]
        there[opens, EMBEDDING, 0] += _kept_at_end(context.job, *first, last=False)
    activations, layers = kept + working, there[:, LAYERS].max(axis=1)
    peak = np.maximum(there[:, :REFERENCE].max(axis=1), there[:, LAST_LAYER:].max(axis=1))
    gradients, logits = fixed.gradients + (layers - activations), peak - layers
    weights = fixed.weights + np.maximum(there[:, REFERENCE] - peak, 0.0)
    if rows.vpp[0] > 1 and memory_facts(context.job.framework).stage_buffers:
        beside = activations + logits
        apart = _chunk_after_chunk(context, rows, shards, starts, fixed, values, working, beside)
        gradients = gradients - np.minimum(apart, gradients)
    tensors = weights + gradients + fixed.optimizer + activations + logits + fixed.buffers
    return Footprint(
        weights=weights,
        gradients=gradients,
        optimizer=fixed.optimizer,
        activations=activations,
        logits=logits,
        buffers=fixed.buffers,
        context=reserved_bytes(context.job, tensors),
        in_host=host_bytes(context, rows, shards, starts, fixed),
    )


def _chunk_after_chunk(
    context: Context,
    rows: Strategies,
    shards: LayerRows,
    starts: Ints,
    fixed: Fixed,
    values: Floats,
    working: Floats,
    beside: Floats,
) -> Floats:
    """Return by how much weights, gradients and what is `beside` them never come together, [N, P], where no chunk of a
    rank runs again once another has gone backward, as all micro-batches go at once: weights of a chunk are gathered at
    its first pass and gone after its last, its gradients come with its first backward pass, in place of what that
    micro-batch kept (torchtitan 0.3 under PyTorch 2.13, rehearsed). `values` [N, v, P] are what a micro-batch keeps."""
    chunks, count = int(rows.vpp[0]), fixed.micro_batches[:, None, None]
    stages, table, job = of_pipelines(shards.row, starts, context.layer_count), shards.table, context.job
    parameters = per_rank(stages.total(table.dense) + stages.total(table.expert), chunks)
    weights = weight_bytes(job) * np.cumsum(parameters, axis=1)
    of_chunk = gradient_bytes(job) * parameters
    gradients = np.cumsum(of_chunk[:, ::-1], axis=1)[:, ::-1]
    waiting, later = count + 0.0 * values, count - 1 + 0.0 * values
    waiting[:, -1, -1], later[:, -1, -1] = 1.0, fixed.micro_batches > 1  # each with its loss, one after another
    others = count * (np.cumsum(values, axis=1) - values)
    kept = others + np.maximum(waiting * values - of_chunk, later * values)
    moments = weights + gradients + kept + working[:, None]
    moments[:, -1, -1] += np.maximum(fixed.moments[:, LOGITS, -1] - working[:, -1], 0.0)
    whole = weights[:, -1] + gradients[:, 0] + beside
    once = all_at_once(job, rows) & (rows.sharding == UNSHARDED)
    return np.where(once[:, None], np.maximum(whole - moments.max(axis=1), 0.0), 0.0)


def host_bytes(context: Context, rows: Strategies, shards: LayerRows, starts: Ints, fixed: Fixed) -> Floats:
    """Return the host memory that one GPU of each rank takes, [N, P]: optimizer state and offloaded activations."""
    if context.job.options.activation_offload != "inputs":
        return fixed.in_host
    stages = of_pipelines(shards.row, starts, context.layer_count)
    mode, count = rows.recompute[:, None], rows.recompute_layers[:, None]
    inputs = per_rank(in_host_bytes(shards.table.offloaded, stages, mode, count), int(rows.vpp[0]))
    return np.asarray(fixed.in_host + most_kept(context.job, rows, np.asarray(inputs), fixed.micro_batches))


def most_kept(job: Job, rows: Strategies, values: Floats, count: Ints) -> Floats:
    """Return the most that ranks keep, [N, P], where a micro-batch leaves `values` [N, v, P] on each virtual stage. A
    micro-batch whose gradients of weights are not computed keeps as much as before its backward pass: the inputs of
    products, and instead of all else the gradients of their outputs, of the same sizes. Where an exchange runs beside
    other micro-batches, one forward pass more comes before each backward pass (Megatron-LM core_v0.19.2:
    pipeline_parallel/schedules.py 939-943)."""
    kept = most_live(values, count)
    if rows.zero_bubble.any():
        kept = np.where(rows.zero_bubble[:, None], most_live(values, count, apart=True), kept)
    if job.options.exchange_overlap == "batches":
        kept = np.minimum(kept + values.max(axis=1), values.sum(axis=1) * count[:, None])
    return kept


def _kept_at_end(job: Job, rows: Strategies, values: Floats, count: Ints, *, last: bool) -> Floats:
    """Return the same of the first rank while the embedding runs backward, or of the `last` while the logits of a
    micro-batch are there, [N]."""
    kept = live_at_end(values, count, last=last)
    if rows.zero_bubble.any():
        kept = np.where(rows.zero_bubble, live_at_end(values, count, last=last, apart=True), kept)
    if job.options.exchange_overlap == "batches":
        held = values[:, :, -1 if last else 0]
        kept = np.minimum(kept + held.max(axis=1), held.sum(axis=1) * count)
    return kept
