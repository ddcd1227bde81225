"""What a rank has at each moment at which its memory may be fullest, whatever is recomputed.

A step goes through few moments that can be its peak. At each there is what is always there, a part of the activations
that the rank keeps, the working set of a layer if one runs, and bytes of the moment itself: gradients that have come by
then, weights that are gathered, units of the ends of the model. `MOMENTS` says which activations are there, and
`fixed_bytes` the rest, [N, M, P] for M moments of P ranks. `footprint` adds them up; `room` bounds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from shardwright.arrays import Bools, Columns, Floats, Ints
from shardwright.cost.context import Context, LayerRows
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.gathers import micro_batches, summed_at_last
from shardwright.cost.iteration.step import data_parallel, frozen_on
from shardwright.cost.memory.backward import norm_backward_bytes
from shardwright.cost.memory.ends import (
    WholeUnits,
    beside_reference,
    released_head_bytes,
    scored_head_bytes,
    tied_unit_bytes,
    whole_answers,
    whole_units,
)
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.memory.sizes import (
    HeldParameters,
    StateBytes,
    StateSplit,
    elsewhere,
    gathered_bytes,
    gradient_bytes,
    reference_head_bytes,
    reference_pass_bytes,
    state_bytes,
    update_copy_bytes,
    weight_bytes,
)
from shardwright.cost.stage.exact import of_pipelines, per_rank
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


@record(kw_only=False)
class Moment:
    """Which activations are there: `whole` times those that a rank keeps at most, and those of so many `layers` more;
    and whether a layer `runs`, with its working set. What is kept at the ends of the model is counted by itself
    (`footprint`)."""

    whole: int
    layers: int
    runs: bool


MOMENTS: Mapping[str, Moment] = {
    "a layer begins forward": Moment(1, -1, runs=False),
    "the logits are there": Moment(0, 0, runs=False),
    "a reference runs": Moment(0, 0, runs=False),
    "the last layer runs backward": Moment(1, 0, runs=True),
    "the layer before it does": Moment(1, -1, runs=True),  # what the last one kept is gone
    "the second layer does": Moment(0, 2, runs=True),
    "the first layer does": Moment(0, 1, runs=True),
    "the embedding does": Moment(0, 0, runs=False),
    "weights are updated": Moment(0, 0, runs=False),
}
FORWARD, LOGITS, REFERENCE, LAST_LAYER, LAYER_BEFORE, SECOND_LAYER, FIRST_LAYER, EMBEDDING, UPDATE = range(len(MOMENTS))
LAYERS = [LAST_LAYER, SECOND_LAYER, FIRST_LAYER]  # whose gradients and activations are told as such
KEPT, MORE, RUNS = np.array([(at.whole, at.layers, at.runs) for at in MOMENTS.values()], dtype=float).T[:, :, None]
NEVER = -np.inf


@record
class Fixed(Columns):
    """What recomputation does not change, in bytes: `weights`, `gradients`, `optimizer` and `buffers` that are always
    there and `in_host` [N, P], and what comes to them at each of MOMENTS, `moments` [N, M, P], `NEVER` on ranks that
    have no such moment; and the micro-batches of each pipeline, [N].

    A layer's working set alternates with `closing`, the gradients of one more layer where it ends; `waiting` says
    whether gradients of its weights wait until then, [N, P]."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    buffers: Floats
    moments: Floats
    closing: Floats
    waiting: Bools
    in_host: Floats
    micro_batches: Ints

    @property
    def always(self) -> Floats:
        """What is there at every moment, [N, P]."""
        return self.weights + self.gradients + self.optimizer + self.buffers


def fixed_bytes(
    context: Context, rows: Strategies, shards: LayerRows, starts: Ints, count: Ints | None = None
) -> Fixed:
    """Return the part of the footprint on which recomputation has no influence; `count` are the micro-batches of each
    pipeline [N], those of the job's batch where None."""
    held, model, job = held_parameters(context, rows, shards, starts), context.model, context.job
    count = micro_batches(job, rows) if count is None else count
    state, facts, at_last = states(context, rows, shards, held), memory_facts(job.framework), summed_at_last(job, rows)
    layer, ranks = shards.table.parameters[shards.row], data_parallel(context, rows).dense.size
    units = whole_units(model, job, rows, layer, ranks, count, at_last)
    boundary = shards.table.boundary[shards.row][:, None]
    gathered = gathered_bytes(model, job, rows.micro_batch, rows.cp, rows.tp, rows.pp)[:, None]
    waiting = (state.closing > 0.0) & ~at_last[:, None]
    norm = norm_backward_bytes(model, job) * boundary / widths_of(job).saved
    tied_weights, tied_gradients = (part[:, None] for part in tied_unit_bytes(model, job, rows))
    # While layers run, the unit of the ends is there: its weights but for what is released, and its gradients.
    apart = (rows.sharding >= ZERO2)[:, None] & facts.head_alone
    open_weights = tied_weights - released_head_bytes(model, job, rows)[:, None]
    open_gradients = units.last[:, None] + tied_gradients
    passing = np.where(apart, state.gathered + open_weights + open_gradients, 0.0)
    shape = state.weights.shape
    late = np.broadcast_to(np.where(facts.freed & (count == 1)[:, None], state.ending, 0.0), shape)
    gradients = state.gradients + open_gradients - passing - late
    moments = np.full((len(rows), len(MOMENTS), shape[1]), NEVER)
    moments[:, FORWARD] = state.arriving * np.where(rows.sharding == ZERO3, 3.0, 2.0)[:, None] + tied_weights
    logits, reference = _beside_logits(context, rows, shards, held, state, units, count)
    moments[:, LOGITS, -1], moments[:, REFERENCE, -1] = logits, np.where(reference > 0.0, reference, NEVER)
    moments[:, LAST_LAYER:EMBEDDING] = _as_layers_run(context, rows, shards, state, units, late) + passing[:, None]
    moments[:, [LAST_LAYER, LAYER_BEFORE]] -= _gone(rows, state)[:, None]
    moments[:, LAYER_BEFORE] += units.before[:, None] - state.arriving * (rows.sharding == ZERO2)[:, None]
    moments[:, EMBEDDING, 0] = (units.first[:, None] + tied_weights + late - state.resharded)[:, 0]
    moments[:, UPDATE] = _in_update(context, rows, held, state, late)
    return Fixed(
        weights=state.weights + open_weights + reference_head_bytes(model, job, rows)[:, None],
        gradients=gradients,
        optimizer=state.optimizer,
        buffers=message_buffers(job, rows, boundary, count) + gathered + _staying(context, rows, shards, starts),
        moments=moments,
        closing=state.closing + np.where(waiting, norm, 0.0),
        waiting=waiting,
        in_host=np.broadcast_to(state.in_host, shape),
        micro_batches=count,
    )


def _beside_logits(
    context: Context,
    rows: Strategies,
    shards: LayerRows,
    held: HeldParameters,
    state: StateBytes,
    units: WholeUnits,
    count: Ints,
) -> tuple[Floats, Floats]:
    """Return what the last rank has beside the logits, and beside those of a reference, 0 without one, [N]."""
    model, job, facts = context.model, context.job, memory_facts(context.job.framework)
    before_logits = shards.table.before_logits[shards.row] * ~put_off(job, rows, count)
    arriving = np.broadcast_to(state.arriving, state.weights.shape)[:, -1]
    logits = rows.micro_batch * job.sample_tokens / rows.cp * model.vocab / rows.tp
    kept, more = (width * logits for width in beside_reference(job))
    reference = reference_pass_bytes(model, job, rows, (held.dense + held.expert)[:, -1], arriving, (kept, more))
    gone = _gone(rows, state)[:, -1]  # when the logits run backward, of which the forward pass has less
    forward = units.head * (1.0 - widths_of(job).logit / facts.logit)
    head = np.where(gone > 0.0, np.maximum(units.head - gone, forward), units.head) + before_logits
    if facts.freed and (job.loss == "tiled" or whole_answers(job)):
        elements = shards.table.boundary[shards.row] / widths_of(job).saved
        head = scored_head_bytes(model, job, rows, arriving, elements, before_logits)
    head = np.maximum(head, units.summing - released_head_bytes(model, job, rows))
    return head, np.where(reference > 0.0, reference + before_logits, 0.0)


def _gone(rows: Strategies, state: StateBytes) -> Floats:
    """Return the copies of weights of layers that all run again, which are gone before these run backward, [N, P]."""
    again = (rows.recompute == UNIFORM) & (rows.sharding == UNSHARDED)
    return np.where(again[:, None], np.broadcast_to(state.resharded, state.weights.shape), 0.0)


def _as_layers_run(
    context: Context, rows: Strategies, shards: LayerRows, state: StateBytes, units: WholeUnits, late: Floats
) -> Floats:
    """Return the gradients that are there as the last layer runs backward, the one before it, the second and the first,
    [N, 4, P], of those that come `late`: in place of activations, and of weights that leave layer by layer. The head's
    is there before any layer runs; the embedding's and the running layer's are missing to the last."""
    model, job, facts = context.model, context.job, memory_facts(context.job.framework)
    layer, table = shards.table.parameters[shards.row], model.token_table_parameters
    alone, head_alone = (part * (not model.tied_embeddings) for part in (table, model.head_table_parameters))
    shares = np.where(rows.sharding == UNSHARDED, 1, data_parallel(context, rows).dense.size)
    head, first, second = (
        np.minimum(late, (gradient_bytes(job) * part / shares)[:, None])
        for part in (head_alone + 0.0 * layer, table + layer, table + 2.0 * layer)
    )
    # comes with the last layer, and is not beside the first ones
    beside = (units.last - released_head_bytes(model, job, rows))[:, None] * (not facts.by_unit)
    # beside the first layer the embedding is gathered, not a layer before it
    gathered_less = weight_bytes(job) * ((layer - alone) * (rows.sharding == ZERO3))[:, None] * facts.freed
    by_then = late - beside - state.resharded
    return np.stack([head, head, by_then - second, by_then - first - gathered_less], axis=1)


def _in_update(context: Context, rows: Strategies, held: HeldParameters, state: StateBytes, late: Floats) -> Floats:
    """Return what the update adds, [N, P]: copies of what it updates, and all gradients where they came late."""
    job, facts = context.job, memory_facts(context.job.framework)
    copied = weight_bytes(job) * facts.by_unit * np.isin(rows.sharding, (ZERO1, ZERO2))[:, None]
    updated, here = _updated(context, rows, held), (1.0 - rows.offload)[:, None]
    copies = copied * updated + update_copy_bytes(job, rows.sharding[:, None], here * updated)
    gone = np.where((late > 0.0) | (rows.sharding == UNSHARDED)[:, None], state.resharded, 0.0)
    return np.asarray(copies + late - gone)


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


def put_off(job: Job, rows: Strategies, count: Ints) -> Bools:
    """Return whether what the head keeps outlives the backward pass of the logits, [N]: the gradients of its weights
    come later, or another of `count` micro-batches has run forward before."""
    return rows.zero_bubble | ((count > 1) & (job.options.exchange_overlap == "batches"))


def has_layers(model: Model, rows: Strategies, starts: Ints) -> Bools:
    """Return which ranks have layers, those of multi-token prediction too, [N, P]."""
    there = per_rank(np.diff(starts, axis=1), int(rows.vpp[0])).sum(axis=1) > 0
    there[:, -1] |= bool(model.mtp_layers)
    return np.asarray(there)


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


def all_at_once(job: Job, rows: Layouts) -> Bools:
    """Return whether all micro-batches go through each chunk at once where weights come and go with these, [N]: by the
    time that all gradients of a rank are there, no more than its first chunk's weights are."""
    few = (rows.vpp > 1) & (micro_batches(job, rows) <= rows.pp)
    return np.asarray(few & memory_facts(job.framework).stage_buffers)
