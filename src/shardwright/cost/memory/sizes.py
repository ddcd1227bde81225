"""Bytes on one GPU: weights, gradients, optimizer state, activations, logits, buffers.

Activations follow Korthikanti et al. 2022 (arXiv 2205.05198 §4), tensor by tensor, so that grouped queries, gated
and expert layers, latent attention and FlashAttention have their own counts; for a GPT layer the sum is the paper's
sbh(10 + 24/t + 5as/(ht)), with sequence parallelism sbh/t (34 + 5as/h).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Array, Floats, Ints
from shardwright.cost.compute.operators import Shard, norm_tokens, tokens
from shardwright.cost.compute.selective import freed_bytes
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.strategies import UNSHARDED, ZERO2, ZERO3
from shardwright.spec.job import Job
from shardwright.spec.model import Attention, Layer, Mlp, Model, Moe

OPTIMIZER_BYTES = {"adam": 12.0, "sgd": 8.0, "none": 0.0}  # master weight and moments in fp32; documented
ADAPTER_SHARE = 0.005  # of the weights, in LoRA adapters of rank 16 to 32; chosen
CONTEXT_BYTES = 1.2e9  # CUDA context, cuBLAS and NCCL work space; nvidia-smi minus reserved on A100 and H100; measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes of one micro-batch, lists over positions (embedding, kinds of layers, head) of [M]; `gradients` over kinds
    of layers alone."""

    kept: list[Floats]
    core: list[Floats]
    inputs: list[Floats]
    gradients: list[Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Weights, gradients and optimizer state of one GPU, arrays of any broadcast shape."""

    weights: Floats
    gradients: Floats
    optimizer: Floats


def layer_activation_bytes(model: Model, shard: Shard, job: Job) -> Activations:
    """Return what each position keeps for the backward pass."""
    outer = norm_tokens(shard, job) * model.hidden
    facts, saved = memory_facts(job.framework), widths_of(job).saved
    zero = np.zeros(len(shard.tp))
    kept, core, inputs, gradients = [], [], [], []
    for layer in model.kinds:
        attention, scores = _attention_bytes(model, layer.attention, shard, job)
        feed_forward = zero
        if layer.mlp is not None:
            feed_forward = _mlp_bytes(model, layer.mlp, shard, job)
        if layer.moe is not None:
            feed_forward = feed_forward + _moe_bytes(model, layer.moe, shard, job)
        masks = 2.0 if model.dropout else 0.0
        outside = outer * (saved * layer.norms + masks + facts.hidden_copies * saved / 2.0)
        kept.append(outside + attention + feed_forward)
        core.append(freed_bytes(model, layer, shard, job, kept[-1], scores, width=saved))
        inputs.append(saved * outer)
        gradients.append(_gradient_bytes(model, layer, shard, job))
    embedding = outer * (1.0 if model.dropout else 0.0)
    last = 2.0 * saved * outer  # inputs of the final norm and of the output projection
    head = last + model.mtp_layers * (kept[model.kind_of_layer[-1]] + last)
    return Activations(
        kept=[embedding, *kept, head],
        core=[zero, *core, zero],
        inputs=[embedding, *inputs, head],
        gradients=gradients,
    )


def _inner_bytes(job: Job, *, gated: bool) -> float:
    """Bytes for each element of the width of a feed-forward block: the input of the non-linearity, and that of the
    second projection unless its weights are frozen and without an adapter."""
    widths, copies = widths_of(job), memory_facts(job.framework).inner_copies
    saved = 0.0 if job.attention_adapters else widths.saved_input
    return widths.saved_inner * (2.0 if gated else 1.0) + saved + copies * widths.saved / 2.0


def _attention_bytes(model: Model, attention: Attention, shard: Shard, job: Job) -> tuple[Floats, Floats]:
    """Return the bytes of the attention block and, of these, those that recomputing core attention frees."""
    size, outer = tokens(shard, job), norm_tokens(shard, job)
    widths = widths_of(job)
    saved = widths.saved_input
    key_part = np.maximum(1.0 / shard.tp, 1.0 / attention.kv_heads)  # a rank has one key-value head at least
    queries, keys = attention.query_width / shard.tp, attention.key_width * key_part
    qkv = queries + keys + attention.value_width * key_part
    if attention.latent is None:
        projected = saved * outer * model.hidden
    else:
        mla = attention.latent
        ranks = (mla.query_rank or 0) + mla.kv_rank
        projected = saved * outer * model.hidden + (widths.saved + saved) * outer * ranks
        qkv = attention.heads * (2 * attention.head_dim + attention.value_head_dim) / shard.tp
    heads = attention.heads / shard.tp
    per_score = 2.0 * widths.saved + 1.0 if model.dropout else widths.saved
    sums = 4.0 * size * heads  # FlashAttention keeps one fp32 number a row of scores
    scores = np.where(shard.flash, sums, per_score * size * job.seq_len * heads)
    inner = widths.saved * size * qkv + saved * size * attention.out_width / shard.tp
    if attention.qk_norm:  # what the norms of queries and keys take in
        inner = inner + widths.saved * size * (queries + keys)
    if whole := memory_facts(job.framework).whole_sequence:
        inner = inner + whole * (shard.cp - 1) * widths.saved * size * (qkv - queries)
        scores = scores + np.where(shard.cp > 1, whole * saved * size * attention.out_width / shard.tp, 0.0)
    return projected + inner + scores, scores


def _mlp_bytes(model: Model, mlp: Mlp, shard: Shard, job: Job) -> Floats:
    saved = 0.0 if job.attention_adapters else widths_of(job).saved_input
    size = tokens(shard, job) * mlp.width / shard.tp
    return saved * norm_tokens(shard, job) * model.hidden + _inner_bytes(job, gated=mlp.gated) * size


def _moe_bytes(model: Model, moe: Moe, shard: Shard, job: Job) -> Floats:
    widths, outer = widths_of(job), norm_tokens(shard, job)
    routed = outer * moe.top_k * np.where(shard.sequence_parallel, shard.etp, shard.etp / shard.tp)
    router = outer * (widths.saved * model.hidden + 8.0 * moe.experts)  # logits and probabilities in fp32
    inner = _inner_bytes(job, gated=moe.gated) * moe.expert_width / shard.etp
    experts = routed * (widths.saved_input * model.hidden + inner + widths.saved * model.hidden)
    total = router + experts
    if moe.shared_width:
        total = total + _mlp_bytes(model, Mlp(width=moe.shared_width, gated=moe.gated), shard, job)
        if widths.saved_input == widths.saved and not job.attention_adapters:  # it is the router's input
            total = total - widths.saved * outer * model.hidden
        total = total + widths.saved * tokens(shard, job) * model.hidden * moe.shared_gate
    return np.asarray(total)


def _gradient_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return the gradients that live together in the backward pass of the feed-forward block: of its inner
    activations, before and after the non-linearity, and of its input."""
    size = tokens(shard, job)
    width = np.zeros(len(shard.tp))
    if layer.mlp is not None:
        width = size * (3.0 if layer.mlp.gated else 2.0) * layer.mlp.width / shard.tp
    if layer.moe is not None:
        routed = (
            norm_tokens(shard, job)
            * layer.moe.top_k
            * np.where(shard.sequence_parallel, shard.etp, shard.etp / shard.tp)
        )
        width = np.maximum(width, routed * (3.0 if layer.moe.gated else 2.0) * layer.moe.expert_width / shard.etp)
    return widths_of(job).saved * (width + size * model.hidden)


def state_bytes(
    job: Job,
    dense: Array,
    expert: Array,
    dense_ranks: Array,
    expert_ranks: Array,
    sharding: Array,
    offload: Array,
    working: Array,
) -> StateBytes:
    """Return the bytes of weights, gradients and optimizer state, for parameters held by a GPU before data-parallel
    sharding.

    Mixed precision keeps 2-byte weights, the gradients of `MemoryFacts` (4 bytes in Megatron-LM, which accumulates in
    fp32) and 12 bytes of master weight and two moments (8 with SGD and momentum). ZeRO-1 shards the state over the
    data-parallel ranks, ZeRO-2 the gradients as well, ZeRO-3 the weights too, of which `working` parameters are
    gathered at a time. `offload` is the fraction of the state in host memory.
    """
    full, facts = job.precision == "fp32", memory_facts(job.framework)
    weight, gradient = weight_bytes(job), gradient_bytes(job)
    own_shard = weight if full else weight - 2.0 + facts.shard_weight
    passing = gradient if facts.shard_weight else min(gradient, weight)
    trained = trained_share(job)
    state = trained * (OPTIMIZER_BYTES[job.optimizer] - (4.0 if full and job.optimizer != "none" else 0.0))
    total = dense + expert
    sharded = dense / dense_ranks + expert / expert_ranks
    gathered = np.minimum(working, total - sharded)
    weights = np.where(sharding == ZERO3, own_shard * sharded + weight * gathered, weight * total)
    gradients = trained * np.where(sharding >= ZERO2, gradient * sharded + passing * gathered, gradient * total)
    optimizer = state * np.where(sharding == UNSHARDED, total, sharded) * (1.0 - offload)
    return StateBytes(weights=weights, gradients=gradients, optimizer=optimizer)


def weight_bytes(job: Job) -> float:
    """Return the bytes of a weight that a rank computes with. In fp8 an fp8 copy and its transpose stand beside the
    16-bit weight (or, with `fp8_storage`, in its place; frozen weights need no transpose)."""
    if job.precision == "fp32":
        return 4.0
    if job.fp8_storage:
        return 1.0 if job.adapters else 2.0
    return 2.0 + (memory_facts(job.framework).fp8_weight if job.precision == "fp8" else 0.0)


def gradient_bytes(job: Job) -> float:
    """Return the bytes of the gradient of a trained weight. Recipes with `fp8_storage` reduce in bf16."""
    if job.precision == "fp32":
        return 4.0
    return 2.0 if job.fp8_storage else memory_facts(job.framework).gradient


def trained_share(job: Job) -> float:
    """Return the part of the weights that has gradients and optimizer state."""
    return ADAPTER_SHARE if job.adapters else 1.0


def least_state_bytes(job: Job, ranks: Array, everything: Array) -> Floats:
    """Return the least of weights, gradients and optimizer state, in bytes per parameter of which `ranks` GPUs hold
    copies: weights and gradients, with the rest in host memory, or a part of all where `everything` may be sharded
    (ZeRO-3)."""
    one, none = np.ones(1), np.zeros(1)
    whole = state_bytes(job, one, none, one, one, np.full(1, UNSHARDED), none, none)
    kept = whole.weights + whole.gradients
    lean = 0.0 if job.precision == "fp32" else 2.0 - memory_facts(job.framework).shard_weight
    total = kept + whole.optimizer
    return np.where(everything, np.minimum(kept, (total - lean) / ranks), kept)


def logit_bytes(model: Model, job: Job, micro_batch: Ints, cp: Ints, tp: Ints) -> Floats:
    """Return the bytes of the logits and the loss on the last stage for one micro-batch, [N]."""
    width = memory_facts(job.framework).logit + widths_of(job).logit - 2.0
    if job.fused_loss:
        width = 0.0
    return width * micro_batch * job.seq_len / cp * model.vocab / tp


def gathered_bytes(model: Model, job: Job, micro_batch: Ints, cp: Ints, tp: Ints, pp: Ints) -> Floats:
    """Return the bytes of hidden states gathered over tensor-parallel ranks that wait for their stream, [N]."""
    facts = memory_facts(job.framework)
    width = np.where(pp > 1, facts.gathered_staged, facts.gathered) * (tp > 1) * widths_of(job).saved / 2.0
    return np.asarray(width * micro_batch * job.seq_len / cp * model.hidden)


def reserved_bytes(job: Job, tensors: Array) -> Floats:
    """Return what the process takes beyond its tensors: context, work space and fragmentation."""
    return np.asarray(CONTEXT_BYTES + memory_facts(job.framework).fragmentation * tensors)


def room_for_tensors(job: Job, capacity_bytes: float) -> float:
    """Return the tensors that a process of `capacity_bytes` has room for: the inverse of `reserved_bytes`."""
    return (capacity_bytes - CONTEXT_BYTES) / (1.0 + memory_facts(job.framework).fragmentation)
