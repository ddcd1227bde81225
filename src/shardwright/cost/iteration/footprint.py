"""Peak memory of every pipeline rank of every strategy.

Rank i holds its weights, gradients and optimizer state, the activations of the micro-batches in flight there, and
the larger of one layer's working set and (on the last rank) the logits. Arrays are [N, P].
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from shardwright.arrays import Bools, Columns, Floats, Ints
from shardwright.cost.context import Context, LayerRows
from shardwright.cost.frameworks.optimizer import update_copy_width
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.gathers import micro_batches, summed_at_last
from shardwright.cost.iteration.step import data_parallel, frozen_on
from shardwright.cost.layers.table import running_sums
from shardwright.cost.memory.backward import norm_backward_bytes
from shardwright.cost.memory.ends import (
    released_head_bytes,
    scored_head_bytes,
    tied_unit_bytes,
    whole_answers,
    whole_units,
)
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.memory.kept import autocast_bytes
from shardwright.cost.memory.sizes import (
    SINGLE,
    HeldParameters,
    StateBytes,
    StateSplit,
    elsewhere,
    gathered_bytes,
    gradient_bytes,
    reference_pass_bytes,
    reserved_bytes,
    state_bytes,
    under_autocast,
    weight_bytes,
)
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
from shardwright.cost.strategies import UNIFORM, UNSHARDED, ZERO1, ZERO2, ZERO3, Layouts, Strategies
from shardwright.records import record
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.job import Job
from shardwright.spec.model import Model

# Activations and gradients that a rank sends and receives at a time: the four tensors of `_communicate` in
# megatron/core/pipeline_parallel/p2p_communication.py.
P2P_BUFFERS = 4  # documented
# Those that Megatron-Core 0.19 holds beside inputs of layers (pipeline_parallel/schedules.py): the input before with
# its gradient until the next one is sent, or of interleaved stages an input and a gradient that have come ahead.
# Those of `train` are what it sent last, and what comes next (runtime/step/{pipeline,channels}.py).
HELD_MESSAGES = 2  # documented


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


@record
class Fixed(Columns):
    """The terms that recomputation does not change, [N, P] in bytes, and the micro-batches of each pipeline, [N].

    While layers run, `passing` is there, a part of weights and gradients; in its place there is what the last rank has
    with its logits, `head` [N], or while a reference runs, `reference` [N], the first in the backward pass of its
    embedding, `first` [N], and each in the update, `bare`, when nothing is kept any more. Layers before the last have
    `before` more, when what the last kept is gone.
    In the forward pass `opening` is there in its place, where a layer begins.
    A layer's working set alternates with `closing`, the gradients of one more layer where it ends; `waiting` says
    whether gradients of its weights wait until then. `late` is the part of gradients that comes in place of activations
    and of weights, which leave layer by layer where they are `resharded`. Of it `late_last`, the head's, is there
    before layers run backward; when the first one does, the last to, `late_first` is missing, and `late_second` when
    the second does. `in_host` is the state in host memory."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    buffers: Floats
    head: Floats
    reference: Floats
    first: Floats
    passing: Floats
    before: Floats
    bare: Floats
    opening: Floats
    closing: Floats
    waiting: Bools
    resharded: Floats
    late: Floats
    late_last: Floats
    late_first: Floats
    late_second: Floats
    in_host: Floats
    micro_batches: Ints


def held_parameters(context: Context, rows: Strategies, shards: LayerRows, starts: Ints) -> HeldParameters:
    """Return the parameters of each rank. A tied output projection is shared where one rank has both ends."""
    table, stages, chunks = shards.table, of_pipelines(shards.row, starts, context.layer_count), int(rows.vpp[0])
    dense, expert = stages.total(table.dense), stages.total(table.expert)
    ends = per_rank(stages.total(table.ends), chunks).sum(axis=1)
    dense, expert = per_rank(dense, chunks).sum(axis=1), per_rank(expert, chunks).sum(axis=1)
    tied: Floats | float = 0.0
    if context.model.tied_embeddings:
        table_of_tokens = (context.model.token_table_parameters / rows.tp)[:, None]
        if rows.pp[0] == 1:
            dense, ends = dense - table_of_tokens, ends - table_of_tokens
        else:
            rank = np.arange(dense.shape[1])
            tied = table_of_tokens * ((rank == 0) | (rank == len(rank) - 1))
    elif rows.pp[0] > 1 and embedded_again(context):
        again = (embedded_again(context) / rows.tp)[:, None] * (np.arange(dense.shape[1]) == rows.pp[0] - 1)
        dense, ends = dense + again, ends + again
    adapters, of_experts, frozen = (
        per_rank(part, chunks).sum(axis=1)
        for part in (stages.total(table.adapters), stages.total(table.expert_adapters), frozen_on(table, stages))
    )
    return HeldParameters(
        dense=dense, expert=expert, ends=ends, tied=tied, adapters=adapters, expert_adapters=of_experts, frozen=frozen
    )


def embedded_again(context: Context) -> int:
    """Return the parameters of the copy of the embedding that the last rank of a pipeline has for multi-token
    prediction, unless it has one already (Megatron-LM core_v0.19.2: models/gpt/gpt_model.py, `mtp_process`)."""
    model, megatron_core = context.model, memory_facts(context.job.framework).megatron_core
    there = bool(model.mtp_layers) and megatron_core and not model.tied_embeddings
    return model.embedding_parameters * there


def states(context: Context, rows: Strategies, shards: LayerRows, held: HeldParameters) -> StateBytes:
    """Return weights, gradients and optimizer state, [N, P] each."""
    groups = data_parallel(context, rows)
    # blocks that layers share stay gathered with the embedding, whose unit they are of
    at_a_time = 2.0 * shards.table.parameters[shards.row] + context.model.shared_parameters / rows.tp
    split = StateSplit(
        sharding=rows.sharding[:, None],
        dense_ranks=groups.dense.size[:, None],
        expert_ranks=groups.expert.size[:, None],
        offload=rows.offload[:, None],
        working=at_a_time[:, None],
        unsharded=summed_at_last(context.job, rows)[:, None],
    )
    return state_bytes(context.model, context.job, held, split)


def kept_activations(context: Context, rows: Strategies, shards: LayerRows, starts: Ints, count: Ints) -> Floats:
    """Return the bytes that one of `count` micro-batches [N] leaves on each virtual stage until its backward pass,
    [N, v, P]."""
    stages = of_pipelines(shards.row, starts, context.layer_count)
    kept = kept_bytes(shards.table.kept, stages, rows.recompute[:, None], rows.recompute_layers[:, None])
    if memory_facts(context.job.framework).stage_buffers:
        kept = kept + shards.table.boundary[shards.row][:, None] * _outputs_beyond_inputs(context.job, kept.shape[1])
    kept[:, -1] += shards.table.before_logits[shards.row] * _put_off(context.job, rows, count)
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


def _put_off(job: Job, rows: Strategies, count: Ints) -> Bools:
    """Return whether what the head keeps outlives the backward pass of the logits, [N]: the gradients of its weights
    come later, or another of `count` micro-batches has run forward before."""
    return rows.zero_bubble | ((count > 1) & (job.options.exchange_overlap == "batches"))


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


def has_layers(model: Model, rows: Strategies, starts: Ints) -> Bools:
    """Return which ranks have layers, those of multi-token prediction too, [N, P]."""
    there = per_rank(np.diff(starts, axis=1), int(rows.vpp[0])).sum(axis=1) > 0
    there[:, -1] |= bool(model.mtp_layers)
    return np.asarray(there)


def fixed_bytes(
    context: Context, rows: Strategies, shards: LayerRows, starts: Ints, count: Ints | None = None
) -> Fixed:
    """Return the part of the footprint on which recomputation has no influence; `count` are the micro-batches of each
    pipeline [N], those of the job's batch where None."""
    held = held_parameters(context, rows, shards, starts)
    state, model, job = states(context, rows, shards, held), context.model, context.job
    boundary = shards.table.boundary[shards.row][:, None]
    elements = boundary / widths_of(job).saved
    facts, cut = memory_facts(job.framework), (rows.sharding >= ZERO2)[:, None]
    gathered = gathered_bytes(model, job, rows.micro_batch, rows.cp, rows.tp, rows.pp)[:, None]
    count = micro_batches(job, rows) if count is None else count
    layer, ranks = shards.table.parameters[shards.row], data_parallel(context, rows).dense.size
    at_last = summed_at_last(job, rows)
    units = whole_units(model, job, rows, layer, ranks, count, at_last)
    last, released = units.last[:, None], released_head_bytes(model, job, rows)[:, None]
    before_logits = shards.table.before_logits[shards.row] * ~_put_off(job, rows, count)
    waiting = (state.closing > 0.0) & ~at_last[:, None]
    norm = np.where(waiting, norm_backward_bytes(model, job) * elements, 0.0)
    late = np.where(facts.freed & (count == 1)[:, None], state.ending, 0.0)
    table, alone = model.token_table_parameters, model.token_table_parameters * (not model.tied_embeddings)
    shares = np.where(rows.sharding == UNSHARDED, 1, ranks)
    parts = (gradient_bytes(job) * part / shares for part in (alone + 0.0 * layer, table + layer, table + 2.0 * layer))
    beside = (last - released) * (not facts.by_unit)  # comes with the last layer, and is not beside the first ones
    late_parts = [
        np.minimum(late, part[:, None]) + more for part, more in zip(parts, (0.0, beside, beside), strict=True)
    ]
    # beside the first layer the embedding is gathered, not a layer before it
    gathered_less = weight_bytes(job) * ((layer - alone) * (rows.sharding == ZERO3))[:, None] * (late > 0.0)
    updated = _updated(context, rows, held)
    copied = weight_bytes(job) * facts.by_unit * np.isin(rows.sharding, (ZERO1, ZERO2))[:, None]
    bare = (copied + update_copy_width(job) * (1.0 - rows.offload)[:, None]) * updated
    bare = bare + (late - state.resharded) * (rows.sharding == UNSHARDED)[:, None]
    arriving = np.broadcast_to(state.arriving, state.weights.shape)[:, -1]
    reference = reference_pass_bytes(model, job, rows, (held.dense + held.expert)[:, -1], arriving)
    # Copies of weights that run again are gone when the logits run backward, of which the forward pass has less.
    gone = np.where((rows.recompute == UNIFORM) & (rows.sharding == UNSHARDED), state.resharded[:, -1], 0.0)
    forward = units.head * (1.0 - widths_of(job).logit / facts.logit)
    head = np.where(gone > 0.0, np.maximum(units.head - gone, forward), units.head) + before_logits
    if facts.freed and (job.loss == "tiled" or whole_answers(job)):
        head = scored_head_bytes(model, job, rows, arriving, elements[:, 0], before_logits)
    open_weights, open_gradients = (part[:, None] for part in tied_unit_bytes(model, job, rows))
    opening = state.arriving * np.where(rows.sharding == ZERO3, 3.0, 2.0)[:, None] + open_weights
    return Fixed(
        weights=state.weights + open_weights - released,
        gradients=state.gradients + last + open_gradients,
        optimizer=state.optimizer,
        buffers=message_buffers(job, rows, boundary, count) + gathered + _staying(context, rows, shards, starts),
        head=np.maximum(head, units.summing - released[:, 0]),
        reference=np.where(reference > 0.0, reference + before_logits, 0.0),
        first=units.first + open_weights[:, 0],
        passing=np.where(cut & facts.head_alone, state.gathered + last + open_weights + open_gradients - released, 0.0),
        before=units.before[:, None] - state.arriving * (rows.sharding == ZERO2)[:, None],
        bare=bare,
        opening=np.broadcast_to(opening, state.weights.shape),
        closing=state.closing + norm,
        waiting=waiting,
        resharded=state.resharded,
        late=late,
        late_last=late_parts[0],
        late_first=late_parts[1] + gathered_less,
        late_second=late_parts[2],
        in_host=np.broadcast_to(state.in_host, state.weights.shape),
        micro_batches=count,
    )


def _updated(context: Context, rows: Strategies, held: HeldParameters) -> Floats:
    """Return the trained weights that each rank updates, [N, P]. Where it updates a part, the runtime hands out a copy
    of these (`runtime.step.unshard`)."""
    groups, model, job = data_parallel(context, rows), context.model, context.job
    ranks = groups.dense.size[:, None], groups.expert.size[:, None]
    part = replace(held, dense=held.dense - elsewhere(job, held.tied)).trained(model, job, *ranks)
    return np.where(rows.sharding[:, None] == UNSHARDED, held.trained(model, job, 1.0, 1.0), part)


def staying_bytes(context: Context, rows: Strategies, shards: LayerRows) -> tuple[Floats, Floats]:
    """Return the bytes of tensors that Megatron-Core keeps from the first step on, on every rank that has layers and
    more on the last one, [N] each: those that autograd is given in place of gradients, one for each shape of a weight;
    and what is gathered for the output projection, or of tokens for experts where all go to all ranks (core_v0.19.2:
    core/utils.py, `GlobalMemoryBuffer`)."""
    model, job = context.model, context.job
    if not memory_facts(job.framework).megatron_core:
        return np.zeros(len(rows)), np.zeros(len(rows))
    width, split = widths_of(job).saved, rows.sequence_parallel & (rows.tp > 1)
    whole = (rows.sharding <= ZERO1) * job.trains("language")
    joined = 2 * model.hidden**2 * bool(model.mtp_layers)
    output = whole * width * (model.token_table_parameters + joined) / rows.tp
    message = width * rows.micro_batch * job.sample_tokens / rows.cp * model.hidden
    ranks = rows.ep * rows.etp * any(layer.moe for layer in model.kinds)
    gathered = message / np.where(split, rows.tp, 1) * ranks * (ranks > 1) * (job.options.dispatcher == "allgather")
    return whole * shards.table.dummies[shards.row] + gathered, output + np.maximum(message * split - gathered, 0.0)


def _staying(context: Context, rows: Strategies, shards: LayerRows, starts: Ints) -> Floats:
    """Return the same of each rank, [N, P]."""
    every, output = staying_bytes(context, rows, shards)
    total = has_layers(context.model, rows, starts) * every[:, None]
    total[:, -1] += output
    return np.asarray(total)


def message_buffers(job: Job, rows: Strategies, boundary: Floats, count: Ints) -> Floats:
    """Return the bytes of what ranks that have neighbours send and receive at a time, [N, P], where a message has
    `boundary` [N, 1] bytes, and with `stage_buffers` of what they receive of `count` [N] micro-batches: inputs but on
    the first virtual stage, gradients but on the last. There the gradient that the last backward pass gave is kept
    until the next one."""
    ranks = int(rows.pp[0])
    if ranks == 1:
        return 0.0 * boundary
    rank, alone = np.arange(ranks), rows.vpp[:, None] == 1
    facts = memory_facts(job.framework)
    if not facts.stage_buffers:
        return np.asarray(_messages(job) * boundary + 0.0 * rank)
    received = 2 * rows.vpp[:, None] - (rank == 0) - (rank == ranks - 1)
    return np.asarray(boundary * (count[:, None] * received + alone * (rank > 0)))


def least_message_buffers(job: Job, boundary: Floats, staged: Bools | bool) -> Floats:
    """Return the least of these on a rank that has neighbours (`staged`), beyond what it keeps."""
    return np.asarray(_messages(job) * boundary * staged * (not memory_facts(job.framework).stage_buffers))


def _messages(job: Job) -> int:
    """Return how many messages a rank has at a time beside inputs of layers."""
    return HELD_MESSAGES if memory_facts(job.framework).megatron_core or job.framework == OWN else P2P_BUFFERS


def footprint(
    context: Context, rows: Strategies, shards: LayerRows, starts: Ints, fixed: Fixed | None = None
) -> Footprint:
    """Return the peak of each rank. All rows have equal pp and vpp. `fixed` is what `fixed_bytes` returns for them."""
    fixed = fixed or fixed_bytes(context, rows, shards, starts)
    working = working_set(context, rows, shards, starts)
    if fixed.closing.any():
        working = working + fixed.waiting * shards.table.halfway[shards.row][:, None]
        working = np.maximum(working, fixed.closing - _last_kept(context, rows, shards, starts))
    values = kept_activations(context, rows, shards, starts, fixed.micro_batches)
    kept = most_kept(context.job, rows, values, fixed.micro_batches)
    per_layer = kept / context.layer_count
    later = (
        np.minimum(fixed.late_first - per_layer, fixed.late_second - min(2.0, context.layer_count) * per_layer)
        + kept
        + fixed.resharded
    )
    activations, replaced = kept + working, np.minimum(fixed.late - fixed.late_last, later)
    gradients = fixed.gradients - replaced
    ends = np.maximum(fixed.bare - kept, fixed.opening - per_layer)
    # Without what comes late, the first layer's end is no peak unless it has more than any layer's backward pass.
    opens = np.flatnonzero(fixed.first > np.where(fixed.late.any(), 0.0, working[:, 0]))
    if len(opens):
        at_first = _kept_at_end(context.job, rows.take(opens), values[opens], fixed.micro_batches[opens], last=False)
        others = (fixed.late - fixed.resharded)[opens, 0]  # gradients of all layers are there by then, and no weights
        ends[opens, 0] = np.maximum(ends[opens, 0], fixed.first[opens] + others - (kept[opens, 0] - at_first))
    at_last = _kept_at_end(context.job, rows, values, fixed.micro_batches, last=True)
    ends[:, -1] = np.maximum(ends[:, -1], fixed.head - (kept[:, -1] - at_last))
    ends = ends - working - fixed.passing - (fixed.late - replaced)
    before = fixed.before - per_layer - (fixed.late - fixed.late_last - replaced)
    logits = np.maximum(np.maximum(ends, before), 0.0)
    weights = fixed.weights
    if fixed.reference.any():
        there = kept + working + fixed.passing + (fixed.late - replaced) + logits
        gathered = fixed.reference + at_last - there[:, -1]
        weights = weights + np.maximum(gathered, 0.0)[:, None] * (np.arange(weights.shape[1]) == weights.shape[1] - 1)
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
    moments[:, -1, -1] += np.maximum(fixed.head - working[:, -1], 0.0)
    whole = weights[:, -1] + gradients[:, 0] + beside
    once = all_at_once(job, rows) & (rows.sharding == UNSHARDED)
    return np.where(once[:, None], np.maximum(whole - moments.max(axis=1), 0.0), 0.0)


def all_at_once(job: Job, rows: Layouts) -> Bools:
    """Return whether all micro-batches go through each chunk at once where weights come and go with these, [N]: by the
    time that all gradients of a rank are there, no more than its first chunk's weights are."""
    few = (rows.vpp > 1) & (micro_batches(job, rows) <= rows.pp)
    return np.asarray(few & memory_facts(job.framework).stage_buffers)


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
