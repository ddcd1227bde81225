"""Bytes on one GPU: weights, gradients and optimizer state, a reference's, and what a process takes beyond tensors."""

from __future__ import annotations

from functools import partial

import numpy as np

from shardwright.arrays import Array, Floats, Ints, by_number
from shardwright.cost.frameworks.optimizer import COPY_BYTES, ends_width, paged_width, state_width, update_copy_width
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.memory.facts import SUB_GROUP, memory_facts
from shardwright.cost.strategies import UNSHARDED, ZERO1, ZERO2, ZERO3, Strategies
from shardwright.records import record
from shardwright.spec.adapter import least_adapter_share
from shardwright.spec.images import tower_parameters, trained_parameters
from shardwright.spec.job import Job
from shardwright.spec.model import Model

SINGLE = 4.0  # documented: bytes of an element of 32 bits
CONTEXT_BYTES = 1.2e9  # CUDA context, cuBLAS and NCCL work space; nvidia-smi minus reserved on A100 and H100; measured


@record
class StateBytes:
    """Weights, gradients and optimizer state of one GPU, arrays of any broadcast shape. Of weights and gradients,
    `gathered` are those of layers that are gathered for their passes; `ending` are gradients that the update ends where
    `MemoryFacts` says so, and weights that a backward pass leaves sharded, or in fp32 alone, layer by layer, are
    `resharded`. `closing` are gradients of one more layer where a layer's backward pass ends: under FSDP2 those before
    it are on their way by then. Beside gradients that stay whole until the last micro-batch they are the sum's copy of
    the layer. `arriving` are weights of a layer as they come, in a buffer, which FSDP2 keeps until those of the next
    one are copied out of theirs (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py 2.13: `all_gather_state`).
    `in_host` are the bytes of host memory: offloaded state with its gradients and what else follows it, and state that
    is paged.
    """

    weights: Floats
    gradients: Floats
    optimizer: Floats
    gathered: Floats
    resharded: Floats
    closing: Floats
    arriving: Floats
    ending: Floats
    in_host: Floats


@record
class HeldParameters:
    """Parameters that one GPU of each rank holds before data-parallel sharding, [N, P]; `ends` are those of `dense` in
    embedding and output projection, `tied` those of an embedding that the other end of the pipeline holds, too,
    `adapters` those beside frozen ones of `dense`, `expert_adapters` beside experts, `frozen` those of a tower that is
    not trained, none of which are part of `dense`."""

    dense: Floats
    expert: Floats
    ends: Floats
    tied: Floats | float = 0.0
    adapters: Floats | float = 0.0
    expert_adapters: Floats | float = 0.0
    frozen: Floats | float = 0.0

    def trained(self, model: Model, job: Job, dense_ranks: Array | float, expert_ranks: Array | float) -> Floats:
        """Return the weights that are trained, where so many ranks share them out."""
        if job.adapters:
            return np.asarray(self.adapters / dense_ranks + self.expert_adapters / expert_ranks)
        return np.asarray(trained_share(model, job) * (self.dense / dense_ranks + self.expert / expert_ranks))


@record
class StateSplit:
    """How weights, gradients and optimizer state are split: the `sharding` (codes of `cost.strategies`) over so many
    ranks of dense and of expert parameters, and the part of the state in host memory (`offload`). Under ZeRO-3
    `working` parameters are gathered at a time; gradients that are `unsharded` are whole until the last micro-batch, in
    the type that is sent."""

    sharding: Array
    dense_ranks: Array | float = 1.0
    expert_ranks: Array | float = 1.0
    offload: Array | float = 0.0
    working: Array | float = 0.0
    unsharded: Array | bool = False


def state_bytes(model: Model, job: Job, held: HeldParameters, split: StateSplit) -> StateBytes:
    """Return the bytes of weights, gradients and optimizer state of the parameters that a GPU holds.

    Mixed precision keeps 2-byte weights, the gradients of `MemoryFacts` (4 bytes in Megatron-LM, which accumulates in
    fp32) or of the job's options, and the state of `frameworks.optimizer`. ZeRO-1 shards the state over the data-
    parallel ranks, ZeRO-2 the gradients as well, ZeRO-3 the weights too. With the state in host memory goes what
    follows it there (`MemoryFacts`); weights may be there without it (`weight_offload`). The ends stay with Adam under
    Muon and in 16 bits beside quantised layers.

    Frozen weights have no gradients and no state, and so no master weight either: of these a rank keeps its shard as
    they are, and of quantised ones all scales, which follow nothing to the host. Under FSDP2's ZeRO-2 shards that are
    no masters stay beside the weights that are gathered from them.
    """
    dense, expert, ends = held.dense, held.expert, held.ends
    dense_ranks, expert_ranks = split.dense_ranks, split.expert_ranks
    sharding, offload, unsharded = split.sharding, split.offload, split.unsharded
    full, facts = job.precision == "fp32", memory_facts(job.framework)
    weight, gradient, frozen = weight_bytes(job), gradient_bytes(job), frozen_bytes(job)
    own_shard = weight if full or not job.masters else weight - 2.0 + facts.shard_weight
    passing = gradient if facts.shard_weight else min(gradient, weight)
    state, parameters, kept = state_width(model, job), dense + expert, dense / dense_ranks + expert / expert_ranks
    total, sharded = (held.trained(model, job, *ranks) for ranks in ((1.0, 1.0), (dense_ranks, expert_ranks)))
    share: Array | float = trained_share(model, job)
    if job.adapters:  # of layers, as the ends have none
        share = total / np.maximum(parameters - ends, 1.0)
    by_option = float(job.options.weights_in_host)
    weights_away = np.maximum(offload * facts.weights_follow, by_option) * (sharding == ZERO3)
    gradients_away = offload * facts.gradients_follow * (sharding >= ZERO2)
    open_at_once, reduced = (
        np.minimum(split.working, parameters - kept * (1.0 - part)) for part in (weights_away, gradients_away)
    )
    whole, shard, opened = weight * total, own_shard * sharded, weight * share * open_at_once
    scales: Array | float = 0.0
    if frozen:
        part, apiece = 1.0 if job.adapters else 1.0 - share, job.kept_bytes[1]
        wide = ends + expert * job.experts_unquantised
        wider, scales = max(weight - frozen, 0.0) * wide, part * apiece * (parameters - wide)
        gathered = np.maximum(frozen - apiece, weight * (expert > 0.0) * job.experts_unquantised)
        whole, opened = whole + part * frozen * parameters + wider, opened + part * gathered * open_at_once
        shard = shard + part * (frozen - apiece) * kept + scales + (wider + part * apiece * wide) / dense_ranks
    unchanged = (frozen or weight) * held.frozen
    whole, shard = whole + unchanged, shard + unchanged / dense_ranks
    reference, reference_away = _reference_bytes(job, split, parameters, kept)
    kept_too = (sharding == ZERO2) & (facts.shard_weight == 0.0)
    resharded = (kept_too | (under_autocast(job) & (sharding == UNSHARDED))) * whole
    by_layer = facts.freed & (facts.shard_weight == 0.0)
    whole = whole + kept_too * (shard - scales - sharded * own_shard * (job.masters and not full))
    weights = np.where(sharding == ZERO3, shard - weights_away * (shard - scales) + opened, whole)
    staying, leaving = gradient * sharded * (1.0 - gradients_away), passing * share * reduced
    staying, leaving = np.where(unsharded, 0.0, staying), np.where(unsharded | by_layer, 0.5, 1.0) * leaving
    waiting = np.where(unsharded, widths_of(job).gradient_reduction * total, 0.0)
    beside = np.where(unsharded & by_layer, 0.0, leaving)  # whole ones are there already, and leave as they are summed
    summed = facts.buckets & (sharding == UNSHARDED) & (dense_ranks > 1.0)
    gradients = np.where(sharding >= ZERO2, staying + waiting + beside, gradient * total * (1.0 + summed))
    on_their_way = opened * (sharding == ZERO3) + beside * (sharding >= ZERO2)
    apart = trained_share(model, job) * ends_width(model, job) * (not job.adapters)
    away = elsewhere(job, held.tied)
    updated = np.where(sharding == UNSHARDED, total, sharded - away / dense_ranks)
    optimizer = state * updated + apart * np.where(sharding == UNSHARDED, ends, (ends - away) / dense_ranks)
    return StateBytes(
        weights=weights + reference,
        gradients=gradients,
        optimizer=optimizer * (1.0 - offload),
        gathered=on_their_way,
        resharded=resharded,
        closing=np.where(by_layer & (sharding >= ZERO2), leaving, 0.0),
        arriving=by_layer * (sharding >= ZERO2) * 0.5 * opened,
        ending=np.where(sharding >= ZERO2, staying, gradient * total),
        in_host=offload * (optimizer + facts.host_beside * updated)
        + weights_away * (shard - scales)
        + paged_width(job) * updated
        + reference_away,
    )


def _reference_bytes(job: Job, split: StateSplit, parameters: Floats, kept: Floats) -> tuple[Floats, Floats]:
    """Return the bytes of a reference's weights on the GPU and in host memory (`MemoryFacts.reference`), where a rank
    has `parameters`, of which its shard is `kept`."""
    facts, none = memory_facts(job.framework), 0.0 * kept
    if not job.holds_reference:
        return none, none
    if facts.reference == "unit":
        width = SINGLE if job.masters and reference_is_unit(job) else weight_bytes(job)
        sharded = split.sharding >= ZERO2
        away = split.offload * facts.weights_follow * sharded
    else:
        width, sharded = weight_bytes(job), split.sharding == ZERO3
        away = float(job.options.weights_in_host) * sharded
    held = width * np.where(sharded, kept, parameters)
    staying = weight_bytes(job) * parameters * (sharded & (split.sharding == ZERO2))  # gathered once and for all
    return held * (1.0 - away) + staying, held * away


def reference_is_unit(job: Job) -> bool:
    """Whether a second model stands beside the one that is trained as one unit; others than TRL give its layers units
    of their own."""
    unit = memory_facts(job.framework).reference == "unit"
    return unit and job.holds_reference and job.preference is not None and job.preference.by == "trl"


def reference_pass_bytes(
    model: Model,
    job: Job,
    rows: Strategies,
    parameters: Floats,
    gathered_layer: Floats,
    answers: tuple[Floats, Floats],
) -> Floats:
    """Return what is there while a reference runs, in place of layers that are gathered, [N]. One that is a unit of its
    own has all its `parameters` [N] with the buffer that they came in, which goes when another unit comes
    (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py 2.13: `all_gather_state`); others, and the model without
    its adapters, a `gathered_layer` [N] with its buffer. Beside these are the embeddings, what one layer takes and has
    of its feed-forward block, and of the model the output projection, which stays; and of whole logits the first of
    `answers`, [N] each, or, with the buffer of the last layer alone, both."""
    if job.preference is None or not job.preference.reference or memory_facts(job.framework).reference != "unit":
        return np.zeros(len(rows))
    blocks = [(3.0 if kind.mlp.gated else 2.0) * kind.mlp.width for kind in model.kinds if kind.mlp]
    inner = 3.0 * model.hidden + max(blocks, default=0.0) / rows.tp
    live = widths_of(job).saved * rows.micro_batch * job.sample_tokens / rows.cp * (inner + model.hidden)
    gathered = weight_bytes(job) * parameters if reference_is_unit(job) else gathered_layer
    projection = weight_bytes(job) * model.token_table_parameters / rows.tp
    gathered, projection = (part * (rows.sharding == ZERO3) for part in (gathered, projection))
    kept, more = answers
    return np.asarray(kept + np.maximum(live + 2.0 * gathered, more + gathered) + projection)


def reference_head_bytes(model: Model, job: Job, rows: Strategies) -> Floats:
    """Return the bytes of whole weights of a reference under ZeRO-3 from its first pass on, [N]: of one whose layers
    are units of their own the output projection, which FSDP gives back after a backward pass alone
    (accelerate/utils/fsdp_utils.py 1.15: `fsdp2_prepare_model`); torchtune shards all again."""
    unit = memory_facts(job.framework).reference == "unit"
    stays = unit and job.holds_reference and job.preference is not None and job.preference.by == "llamafactory"
    return np.asarray(stays * weight_bytes(job) * model.token_table_parameters / rows.tp * (rows.sharding == ZERO3))


def parameter_bytes(model: Model, job: Job, split: StateSplit) -> tuple[StateBytes, StateBytes]:
    """Return the same of one parameter of a layer, with adapters as of the layer that has fewest, and of one of the
    embedding or the output projection, which have none."""
    single, zero = np.ones(1), np.zeros(1)
    adapters = single * (0.0 if job.adapter is None else least_adapter_share(model, job.adapter))
    of_layers = state_bytes(model, job, HeldParameters(dense=single, expert=zero, ends=zero, adapters=adapters), split)
    return of_layers, state_bytes(model, job, HeldParameters(dense=single, expert=zero, ends=single), split)


def elsewhere(job: Job, tied: Array | float) -> Floats:
    """Return the parameters of a `tied` embedding whose sharded state the other end of a pipeline keeps."""
    return np.asarray(0.5 * memory_facts(job.framework).tied_once * job.trains("language") * tied)


def weight_bytes(job: Job) -> float:
    """Return the bytes of a weight that a rank computes with. In fp8 an fp8 copy and its transpose stand beside the
    16-bit weight (or, with `fp8_weights`, in its place; frozen weights need no transpose)."""
    if job.precision == "fp32":
        return 4.0
    if job.fp8_weights:
        return 2.0 if job.trains("language") else 1.0
    return 2.0 + (memory_facts(job.framework).fp8_weight if job.precision == "fp8" else 0.0)


def frozen_bytes(job: Job) -> float:
    """Return the bytes of a frozen weight of a layer, none where all are trained."""
    if job.trains("language"):
        return 0.0
    quantised = job.adapter is not None and job.adapter.quantised
    return job.kept_bytes[0] if quantised else weight_bytes(job)


def gradient_bytes(job: Job) -> float:
    """Return the bytes of the gradient of a trained weight. Recipes with `fp8_storage` reduce in bf16."""
    if job.precision == "fp32":
        return 4.0
    narrow = job.bf16_gradients or (job.fp8_storage and not job.fp32_gradients)
    least = SINGLE if job.fp32_gradients else 2.0
    return 2.0 if narrow else max(memory_facts(job.framework).gradient, least)


def update_copy_bytes(job: Job, sharding: Array, updated: Array) -> Floats:
    """Return the bytes that are there in an update alone on a rank that updates so many weights
    (`MemoryFacts.flattens`)."""
    width, at_once = update_copy_width(job), updated
    if memory_facts(job.framework).flattens and gradient_bytes(job) < SINGLE:
        width = gradient_bytes(job) + COPY_BYTES * job.masters
        at_once = np.where(sharding == ZERO3, np.minimum(updated, SUB_GROUP), updated)
    return np.asarray(width * at_once)


def under_autocast(job: Job) -> bool:
    """Whether whole weights are in fp32, of which autocast makes copies in 16 bits for the products of a pass: they go
    layer by layer on its way back, or before that where all layers run again."""
    return memory_facts(job.framework).buckets and job.masters and not job.adapters and job.precision != "fp32"


def summed_bytes(job: Job, sharding: Array | int) -> Floats:
    """Return the bytes in which the gradient of a trained weight is summed over ranks: whole ones are as they are kept
    where they have buckets (`MemoryFacts`)."""
    whole = memory_facts(job.framework).buckets & (sharding == UNSHARDED)
    return np.where(whole, gradient_bytes(job), widths_of(job).gradient_reduction)


def copied_bytes(model: Model, job: Job) -> tuple[float, float]:
    """Return the bytes that the weight and the gradient of a parameter take once more where a rank keeps it twice."""
    return (frozen_bytes(job) or weight_bytes(job)), trained_share(model, job) * gradient_bytes(job)


def trained_share(model: Model, job: Job) -> float:
    """Return the weights that have gradients and optimizer state, over all but those of a frozen tower. Where the
    language model is frozen, those of the tower are taken as spread over it. Of adapters each rank has its own
    (`HeldParameters.trained`); what they send is spread so."""
    return trained_parameters(model, job) / (model.language_parameters + tower_parameters(model, job)[0])


def least_state_bytes(model: Model, job: Job, ranks: Ints, everything: Array, *, gradients: bool = True) -> Floats:
    """Return the least of weights, gradients and optimizer state, in bytes per parameter of which `ranks` GPUs hold
    copies: weights and gradients, or a part of these where `everything` may be sharded (ZeRO-3), with the optimizer's
    state in host memory. Without `gradients` those that come in place of activations do not count."""

    def kept(sharding: int, ranks: Ints) -> Floats:
        split = StateSplit(sharding=np.full(1, sharding), dense_ranks=ranks, offload=1.0)
        of_layers, of_ends = parameter_bytes(model, job, split)
        weights = np.minimum(of_layers.weights, of_ends.weights)
        late = 0.0 if gradients or not memory_facts(job.framework).freed else of_ends.ending
        return np.asarray(weights + of_ends.gradients - late)  # those of layers may have adapters' besides

    whole, cut = (by_number(ranks, partial(kept, sharding)) for sharding in (ZERO1, ZERO3))
    return np.where(everything, np.minimum(whole, cut), whole)


def least_optimizer_bytes(model: Model, job: Job, ranks: Array, offload: float) -> tuple[Floats, Floats]:
    """Return the least optimizer state on the GPU and the least bytes in host memory, in bytes per parameter of which
    `ranks` GPUs hold copies, where a part `offload` of the state is in host memory."""
    split = StateSplit(sharding=np.full(1, ZERO1), dense_ranks=ranks, offload=offload)
    of_layers, of_ends = parameter_bytes(model, job, split)
    on_gpu, in_host = np.minimum(of_layers.optimizer, of_ends.optimizer), np.minimum(of_layers.in_host, of_ends.in_host)
    return np.asarray(on_gpu), np.asarray(in_host)


def gathered_bytes(model: Model, job: Job, micro_batch: Ints, cp: Ints, tp: Ints, pp: Ints) -> Floats:
    """Return the bytes of hidden states gathered over tensor-parallel ranks that wait for their stream, [N]."""
    facts = memory_facts(job.framework)
    width = np.where(pp > 1, facts.gathered_staged, facts.gathered) * (tp > 1) * widths_of(job).saved / 2.0
    return np.asarray(width * micro_batch * job.sample_tokens / cp * model.hidden)


def reserved_bytes(job: Job, tensors: Array) -> Floats:
    """Return what the process takes beyond its tensors: context, work space and fragmentation."""
    return np.asarray(CONTEXT_BYTES + memory_facts(job.framework).fragmentation * tensors)


def room_for_tensors(job: Job, capacity_bytes: float) -> float:
    """Return the tensors that a process of `capacity_bytes` has room for: the inverse of `reserved_bytes`."""
    return (capacity_bytes - CONTEXT_BYTES) / (1.0 + memory_facts(job.framework).fragmentation)
