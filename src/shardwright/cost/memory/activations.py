"""Bytes of activations that a layer keeps for its backward pass.

They follow Korthikanti et al. 2022 (arXiv 2205.05198 §4), tensor by tensor, so that grouped queries, gated and expert
layers, latent attention and FlashAttention have their own counts; for a GPT layer the sum is the paper's
sbh(10 + 24/t + 5as/(ht)), with sequence parallelism sbh/t (34 + 5as/h).
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import or_

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.operators import (
    ACTIVATION,
    CORE,
    MLP,
    MOE,
    NORMS,
    SHARED,
    UP,
    Shard,
    freed_of_operators,
    norm_tokens,
    per_operator,
    repeats,
    split_ways,
    tokens,
)
from shardwright.cost.compute.tower import encoder_shard, patch_inputs, projector_inputs, tower_tokens
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.memory.sizes import PEFT, SINGLE
from shardwright.records import record
from shardwright.spec.adapter import Matrix, Target, adapted, matrices
from shardwright.spec.catalog.frameworks import OWN, experts_in_fp8
from shardwright.spec.images import encoder_job, taken_of
from shardwright.spec.job import Job
from shardwright.spec.layer import Attention, Layer, Mlp, Moe
from shardwright.spec.mixers import Mamba, Mixer, ShortConvolution
from shardwright.spec.model import Model, Tower
from shardwright.spec.streams import Streams

COPIES = 4.0  # documented: `hidden_copies` are two norms' inputs in fp32 in place of 16 bits, and their weights' inputs
NORM_SINGLES, NORM_SAVED = 4.0, 5.0  # documented: `norm_backward_bytes`
FALCON, JOINED = "falcon", ("phi3", "cohere", "cohere2")  # families of transformers, by how they make queries
# Families whose router transformers computes in fp32, from a copy of its input.
SINGLE_ROUTERS = frozenset({
    "axk1", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "exaone_moe",
    "flint", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "hy_v3", "kimi_linear", "kolibri1", "lara_mini", "nemotron_h",
    "solar_open",
})  # fmt: skip


@record
class Activations:
    """Bytes of one micro-batch, lists over positions (embedding, kinds of layers, head) of [M]. `core` is what
    selective recomputation frees, `again` what of it lives beside the gradients while it runs again, where its modules
    are said. `offloaded` are those of `inputs` that are kept in host memory. `dequantised` is the largest quantised
    matrix, 16 bits wide to compute with. `before_logits` [M] are the inputs of the final norm and of the output
    projection, which are gone before a layer runs backward; `halfway` [M] is what is there beyond `gradients` in the
    backward pass of a norm between attention and feed-forward block, where gradients of weights wait for the layer's
    last."""

    kept: list[Floats]
    core: list[Floats]
    inputs: list[Floats]
    gradients: list[Floats]
    again: list[Floats]
    offloaded: list[Floats]
    dequantised: list[Floats]
    before_logits: Floats
    halfway: Floats


def layer_activation_bytes(model: Model, shard: Shard, job: Job) -> Activations:
    """Return what each position keeps for the backward pass. An unfused norm keeps what its weights multiply where
    these are trained."""
    outer = norm_tokens(shard, job) * model.hidden
    saved = widths_of(job).saved
    zero = np.zeros(len(shard.tp))
    kept, core, inputs, gradients, again, dequantised, halfway = [], [], [], [], [], [], [zero]
    to_host = float(job.options.activation_offload == "inputs")
    for layer in model.kinds:
        attention, scores = zero, zero
        if layer.attention is not None:
            attention, scores = _attention_bytes(model, layer.attention, shard, job)
        if layer.mixer is not None:
            attention = attention + _mixer_bytes(model, layer.mixer, shard, job)
        feed_forward = zero
        if layer.mlp is not None:
            feed_forward = _mlp_bytes(model, layer.mlp, shard, job)
        if layer.streams is not None:
            feed_forward = feed_forward + _streams_bytes(model, layer.streams, shard, job)
        if layer.moe is not None:
            feed_forward = feed_forward + _moe_bytes(model, layer.moe, shard, job)
        if layer.cross is not None and model.tower is not None:
            attention = attention + _cross_bytes(model, layer.cross, model.tower, shard, job)
            modules = _module_copies(model, layer, model.tower.copies, job)
            attention = attention + saved * tokens(shard, job) * modules
        masks = 2.0 + (layer.cross is not None) if model.dropout else 0.0
        outside = outer * (layer.norms * (saved + norm_copies(model, job)) + masks)
        feed_forward = feed_forward + _embedded_bytes(model, layer, shard, job)
        if layer.scaled and job.trains("language"):  # what a learned number multiplies
            feed_forward = feed_forward + saved * layer.sublayers * outer
        feed_forward = feed_forward + _eager_bytes(model, layer, shard, job)
        kept.append(outside + attention + feed_forward + _magnitude_bytes(model, layer, shard, job))
        if per_operator(job):
            core.append(freed_of_operators(model, layer, shard, job, kept[-1], width=saved))
        else:
            core.append(_freed_of_modules(model, layer, shard, job, scores))
        repeated = np.maximum(core[-1], 0.0) + _beside_again(layer, shard, job)
        again.append(zero if job.options.recompute_modules is None else repeated)
        inputs.append(saved * outer * (layer.streams.count if layer.streams else 1))
        moments = (_gradient_bytes, _norm_bytes, _unmerged_bytes, _grouped_bytes, _dispatched_bytes, _engine_bytes)
        gradients.append(np.max(np.stack([of(model, layer, shard, job) for of in moments]), axis=0))
        dequantised.append(_dequantised_bytes(model, layer, shard, job))
        halfway.append(_halfway_bytes(model, layer, shard, job) - gradients[-1])
    embedding = outer * (1.0 if model.dropout else 0.0) + _embeddings_bytes(model, shard, job)
    last = (saved + norm_copies(model, job)) * outer + saved * _input_tokens(shard, job) * model.hidden
    if model.streams is not None:
        last = last + saved * tokens(shard, job) * model.streams.end_kept(model.hidden, first=False)
    head = model.mtp_layers * (kept[model.kind_of_layer[-1]] + last)
    head_again = head
    if memory_facts(job.framework).megatron_core:
        ahead = model.mtp_layers * saved * outer
        joined = 2.0 * (ahead + saved * outer * bool(model.mtp_layers))  # what all depths give
        head, head_again = head + 3.0 * ahead + joined, model.mtp_layers * last + 2.0 * ahead + joined
    unneeded = outer * (saved + norm_copies(model, job)) * _stops_at_first_norm(job)
    return Activations(
        kept=[embedding - unneeded, *kept, head],
        core=[-unneeded, *core, zero],
        inputs=[embedding, *inputs, head_again],
        gradients=[zero, *gradients, zero],
        again=[zero, *again, zero],
        offloaded=[zero, *(to_host * size for size in inputs), zero],
        dequantised=[zero, *dequantised, zero],
        before_logits=last,
        halfway=np.max(np.stack(halfway), axis=0),
    )


def _stops_at_first_norm(job: Job) -> bool:
    """Whether the first norm keeps nothing, as neither it nor what is before it is trained; where layers run again,
    what enters the first has a gradient (transformers/modeling_utils.py 5.24: `enable_input_require_grads`)."""
    return job.framework in PEFT and job.adapters


def norm_copies(model: Model, job: Job) -> float:
    """Return the bytes of an element that an unfused norm keeps beyond its input and output in 16 bits: its input in
    fp32 in place of 16 bits, and it before the weights, in 16 or 32 bits, for these' gradients, which frozen ones have
    not. That of Cohere keeps its centred input twice, that of OLMo has its input in fp32. Any other LayerNorm is one
    kernel."""
    unit = memory_facts(job.framework).hidden_copies * widths_of(job).saved / 2.0 / COPIES
    if model.norm == "layernorm" and model.norm_form is None:
        return unit if model.norm_vectors == 0 else 0.0
    weighed = job.trains("language") and model.norm_vectors != 0
    inputs = 2.0 if model.norm_form == "centred" else 1.0
    return unit * (inputs + (0.0 if not weighed else 2.0 if model.norm_form else 1.0))


def norm_backward_bytes(model: Model, job: Job) -> float:
    """Return the bytes of an element that the backward pass of a layer's first norm has at a time where it is unfused,
    beside the gradients of all the layer's weights: four tensors in fp32 and five as activations are, in PyTorch 2.13
    of transformers' `LlamaRMSNorm`."""
    return (NORM_SINGLES * SINGLE + NORM_SAVED * widths_of(job).saved) * (norm_copies(model, job) > 0.0)


def _halfway_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what lives beside what a layer keeps in the backward pass of the norm before its feed-forward block, [M]:
    that pass's, and the gradients of the block's weights, in place of what the block and the norm kept."""
    unfused = norm_backward_bytes(model, job)
    if layer.mlp is None or layer.attention is None or model.parallel_block or not (unfused and job.trains("language")):
        return np.zeros(len(shard.tp))
    saved, outer = widths_of(job).saved, norm_tokens(shard, job) * model.hidden
    weights = saved * (3.0 if layer.mlp.gated else 2.0) * model.hidden * layer.mlp.width / shard.tp
    norm = (unfused - saved - norm_copies(model, job)) * outer
    return np.asarray(weights + norm - _mlp_bytes(model, layer.mlp, shard, job))


def value_norm_copies(job: Job) -> float:
    """Return the same of a norm without weights."""
    return memory_facts(job.framework).hidden_copies * widths_of(job).saved / 2.0 / COPIES


def tower_kept_bytes(tower: Tower, shard: Shard, job: Job) -> tuple[Floats, Floats]:
    """Return what a tower of a model keeps of a micro-batch for its backward pass, [M]: where nothing runs again, and
    where its layers run again with those of the model, which keep their inputs then."""
    positions, merged = tower_tokens(tower, shard, job)
    saved = widths_of(job).saved
    beside = saved * merged * projector_inputs(tower, job)
    if not tower.projector or tower.aside:  # what the decoder's layers read
        beside = beside + saved * merged * tower.given_width
    if tower.tiles is not None:  # a mask of which tiles a token sees
        beside = beside + saved * tokens(shard, job) * taken_of(tower, job).all_tokens
    if not job.trains(tower.part):
        return beside, beside
    beside = beside + saved * positions * patch_inputs(tower)
    copies = _module_copies(tower.encoder, tower.layer, tower.copies, job)
    modules = tower.depth * saved * positions * copies
    if tower.budget is not None:  # what is padded is masked, in 16 bits in each layer
        modules = modules + tower.depth * saved * positions * taken_of(tower, job).positions
    if tower.tiles is not None:  # by one mask for all layers
        modules = modules + saved * positions * taken_of(tower, job).positions
    layers = layer_activation_bytes(tower.encoder, encoder_shard(tower, shard, job), encoder_job(tower, job))
    places = [1 + kind for kind in tower.encoder.kind_of_layer]
    kept, inputs = (np.asarray(sum(figures[place] for place in places)) for figures in (layers.kept, layers.inputs))
    return kept + modules + beside, inputs + beside


def _module_copies(model: Model, layer: Layer, copies: int, job: Job) -> float:
    """Return the elements of a position that a layer of transformers' towers and encoder-decoders keeps beyond the
    formulas, or fewer.

    Each attention has its `copies`. The norm of T5 keeps what it takes in 16 bits, too.
    """
    attentions = sum(kind is not None for kind in (layer.attention, layer.cross))
    kept = float(copies * attentions * model.hidden)
    if model.position == "relative" and memory_facts(job.framework).hidden_copies:
        kept += layer.norms * model.hidden
    if layer.mlp is None:
        return kept
    drops = _drops_inside(model)  # a mask of bytes
    inner = 0 if memory_facts(job.framework).inner_copies else _inner_steps(model)
    return kept + (inner + 0.5 * drops) * layer.mlp.width


def _drops_inside(model: Model) -> bool:
    """Whether some of what the non-linearity gives is dropped, as T5 does."""
    return bool(model.dropout) and model.position == "relative"


def _inner_steps(model: Model) -> int:
    """Return what a non-linearity of a feed-forward block keeps beyond its input and what the product after it takes,
    in elements of the block's width. A quick GELU keeps its sigmoid, the approximation by tanh that is written in
    Python three steps more; ReLU keeps what it gives, which the product after it takes unless some is dropped."""
    return {"quick_gelu": 1, "gelu_new": 3, "relu": -(not _drops_inside(model))}.get(model.activation or "", 0)


def _eager_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what operators of transformers, run one by one, keep beyond the formulas, [M], or less: steps of a
    non-linearity; the result of attention once more, as the product after it takes it, where queries are joined of a
    rotated and another part and the kernel gives its result in their order (aten/src/ATen/native/transformers/cuda/
    flash_attn/flash_api.cpp: empty_like); and the input that both parts of a parallel block share."""
    total, saved = np.zeros(len(shard.tp)), widths_of(job).saved
    facts, attention = memory_facts(job.framework), layer.attention
    if not facts.inner_copies:
        return total
    if layer.mlp is not None:
        total = total + saved * tokens(shard, job) * _inner_steps(model) * layer.mlp.width / shard.tp
    if attention is not None and attention.latent is None and _joins(model):
        total = total + saved * tokens(shard, job) * attention.out_width / shard.tp
    if attention is not None and model.family == FALCON and 1 < attention.kv_heads < attention.heads:  # for every head
        keys_and_values = attention.key_width + attention.value_width
        total = total + saved * tokens(shard, job) * (2 * attention.query_width - keys_and_values) / shard.tp
    if model.parallel_block and attention is not None and layer.mlp is not None:
        total = total - saved * norm_tokens(shard, job) * model.hidden
    return np.asarray(total)


def _joins(model: Model) -> bool:
    """Whether queries are joined of a rotated and another part, or of turned pairs, as in the families of `JOINED`
    whatever that part."""
    return model.position == "rope" and (model.rotary_fraction != 1.0 or model.family in JOINED)


def _cross_bytes(model: Model, attention: Attention, tower: Tower, shard: Shard, job: Job) -> Floats:
    """Return the bytes of attention over what an encoder gives: its input, queries, keys and values, what it gives, and
    scores as in self-attention. What the encoder gives is kept once for all layers (`tower_kept_bytes`)."""
    widths, size, read = widths_of(job), tokens(shard, job), float(taken_of(tower, job).all_tokens)
    projected = widths.saved_input * norm_tokens(shard, job) * model.hidden * _needed(job, "q_proj")
    queries = (widths.saved * attention.query_width + widths.saved_input * attention.out_width) * size / shard.tp
    kept = attention.key_width + attention.value_width
    if tower.tiles is not None:  # beside a mask transformers repeats both for every head
        kept = attention.query_width + attention.out_width
    given = widths.saved * shard.micro_batch * read * kept / shard.tp
    if attention.qk_norm:  # what the norms of queries and keys take in
        normed = size * attention.query_width + shard.micro_batch * read * attention.key_width
        queries = queries + (widths.saved + norm_copies(model, job)) * normed / shard.tp
    return np.asarray(projected + queries + given + _score_bytes(model, attention, shard, job, read))


def _score_bytes(model: Model, attention: Attention, shard: Shard, job: Job, keys: float) -> Floats:
    """Return the bytes of the scores of all queries with `keys`, or, where attention is fused, of their sums: one fp32
    number a row. A bias of scores is kept beside these (`_scaled_dot_product_efficient_attention` in PyTorch's
    derivatives.yaml), masked: of each sample, as these are padded, but one for all where the mask is causal."""
    size, heads, widths = tokens(shard, job), attention.heads / shard.tp, widths_of(job)
    per_score = 2.0 * widths.saved + 1.0 if model.dropout else widths.saved
    sums = SINGLE * size * heads
    if model.position == "relative":
        sums = sums + widths.saved * size * keys * heads / (shard.micro_batch if attention.causal else 1.0)
    return np.asarray(np.where(shard.flash, sums, per_score * size * keys * heads))


def _freed_of_modules(model: Model, layer: Layer, shard: Shard, job: Job, scores: Floats) -> Floats:
    """Return the bytes of one layer that recomputation of modules frees, [M], of which `scores` are core attention's.

    A module that runs again keeps its input. `mla_up_proj`, `layernorm` and `moe_act` drop their outputs: queries, keys
    and values; inputs of the products after the norms that are not fused with them; and the input of the experts'
    second product. A dense block's norm is fused with it, so its input is the norm's, which is kept anyway
    (transformer_config.py 546 and transformer_layer.py 447-516 of Megatron-LM core_v0.19.2).
    """
    modules, widths, moe = repeats(job), widths_of(job), layer.moe
    outer = norm_tokens(shard, job) * model.hidden
    freed = scores - _viewed_bytes(model, layer, shard, job) if modules & CORE else np.zeros(len(shard.tp))
    if layer.latent is not None and modules & NORMS:
        freed = freed + widths.saved_input * outer
    if layer.attention is not None and layer.latent is not None and modules & UP:
        freed = freed + widths.saved * tokens(shard, job) * _latent_width(layer.attention) / shard.tp
    if layer.mlp is not None and modules & MLP:
        freed = freed + _mlp_bytes(model, layer.mlp, shard, job)
    if moe is None:
        return freed
    if modules & NORMS:
        freed = freed + widths.saved * outer
    if modules & MOE:
        return np.asarray(freed + _moe_bytes(model, moe, shard, job) - widths.saved * outer)
    if modules & ACTIVATION and _needed(job, "experts"):
        freed = freed + _expert_input(job) * _routed(moe, shard, job) * moe.expert_width / shard.etp
    if modules & SHARED and moe.shared_width:
        freed = freed + _shared_bytes(model, moe, shard, job)
    return np.asarray(freed)


def _beside_again(layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what of a module that runs again is there beside its gradients, [M], where else it would be gone by then:
    what experts' non-linearity gives, until that has run backward (Megatron-LM core_v0.19.2, tensor_parallel/random.py:
    `CheckpointWithoutOutput`)."""
    moe = layer.moe
    if moe is None or not repeats(job) & ACTIVATION or not memory_facts(job.framework).megatron_core:
        return np.zeros(len(shard.tp))
    return np.asarray(_expert_input(job) * _routed(moe, shard, job) * moe.expert_width / shard.etp)


def _viewed_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what core attention that runs again keeps of its projection, [M]: values as it is given them are a part of
    one with the queries and keys before their rotation, which Transformer Engine else copies out of it."""
    attention, total = layer.attention, np.zeros(len(shard.tp))
    if attention is None or attention.latent is not None or model.position != "rope":
        return total
    if not memory_facts(job.framework).megatron_core or attention.reused is not None:
        return total
    keys = attention.key_width * np.maximum(1.0 / shard.tp, 1.0 / attention.kv_heads)
    width = attention.query_width / shard.tp + keys
    return np.asarray(widths_of(job).saved * tokens(shard, job) * width)


def _input_tokens(shard: Shard, job: Job) -> Floats:
    """Return the tokens of which a rank keeps what products take in that its tensor-parallel ranks gather, [M]."""
    return tokens(shard, job) if memory_facts(job.framework).inputs_whole else norm_tokens(shard, job)


def _latent_width(attention: Attention) -> int:
    """Queries, keys and values of latent attention after their projections up."""
    return attention.heads * (2 * attention.head_dim + attention.value_head_dim)


def _routed(moe: Moe, shard: Shard, job: Job) -> Floats:
    """Tokens that the experts of a rank take, each copy for one expert, [M]."""
    return np.asarray(
        norm_tokens(shard, job) * moe.top_k * np.where(shard.sequence_parallel, shard.etp, shard.etp / shard.tp)
    )


def _expert_input(job: Job) -> float:
    """Bytes of an element that experts take in."""
    return widths_of(job).saved_input if experts_in_fp8(job.framework) else widths_of(job).saved


def _needed(job: Job, *targets: Target) -> bool:
    """Whether the input of products with such weights is kept: for the gradients of the weights, or of adapters beside
    any of them."""
    beside = job.adapter.targets if job.adapter is not None else ()
    return job.trains("language") or any(target in beside for target in targets)


def _inner_bytes(job: Job, saved_input: float, second: Target, *, gated: bool) -> float:
    """Bytes for each element of the width of a feed-forward block: the input of the non-linearity, and that of the
    second projection (`second`) unless its weights are frozen and without an adapter."""
    widths, copies = widths_of(job), memory_facts(job.framework).inner_copies
    saved = saved_input if _needed(job, second) else 0.0
    return widths.saved_inner * (2.0 if gated else 1.0) + saved + copies * widths.saved / 2.0 * gated


def _attention_bytes(model: Model, attention: Attention, shard: Shard, job: Job) -> tuple[Floats, Floats]:
    """Return the bytes of the attention block and, of these, those that recomputing core attention frees."""
    size, outer = tokens(shard, job), norm_tokens(shard, job)
    widths = widths_of(job)
    saved = widths.saved_input
    key_part = np.maximum(1.0 / shard.tp, 1.0 / attention.kv_heads)  # a rank has one key-value head at least
    queries, keys = attention.query_width / shard.tp, attention.key_width * key_part
    values = attention.value_width * key_part
    facts = memory_facts(job.framework)
    qkv = queries + (keys + values) * (attention.reused != "both") * np.where(facts.keys_gathered, shard.cp, 1)
    if attention.latent is None:
        projected = saved * _input_tokens(shard, job) * model.hidden * _needed(job, "q_proj", "k_proj", "v_proj")
    else:
        mla = attention.latent
        ranks = (mla.query_rank or 0) + mla.kv_rank
        projected = (
            saved * _input_tokens(shard, job) * model.hidden
            + (widths.saved + saved + norm_copies(model, job)) * outer * ranks
        )
        if facts.megatron_core and mla.query_rank is None:  # whose input it norms again (mla_qk_norm_config.py)
            projected = projected + saved * outer * model.hidden
        shared = mla.nope_head_dim * (facts.hidden_copies > 0.0)  # values are a part of what holds keys, too
        qkv = (_latent_width(attention) + attention.heads * shared) / shard.tp
    scores = _score_bytes(model, attention, shard, job, float(job.seq_len))
    if saved != widths.saved:  # attention keeps what it gives in 16 bits, beside the projection's copy of it
        scores = scores + widths.saved * size * attention.out_width / shard.tp
    inner = widths.saved * size * qkv + saved * size * attention.out_width / shard.tp
    if attention.gate is not None:  # the gate, and what it multiplies; attention keeps what it gives anyway
        inner = inner + widths.saved * size * (attention.gate_width + attention.out_width) / shard.tp
    if attention.sparse is not None:  # the indexer's queries, key and weights; the keys picked, numbers of 32 bits
        sparse = attention.sparse
        indexer = widths.saved * (sparse.heads * sparse.head_dim + sparse.head_dim + sparse.heads) * bool(sparse.heads)
        inner = inner + size * (indexer + SINGLE * sparse.top_k)
    here = queries + keys * (attention.reused != "both")
    if attention.qk_norm:  # what the norms of queries and keys take in
        inner = inner + (widths.saved + norm_copies(model, job)) * size * here
    if attention.value_norm and attention.reused != "both":
        inner = inner + (widths.saved * (attention.reused is None) + value_norm_copies(job)) * size * values
    apart = model.family == FALCON and attention.kv_heads < attention.heads  # by an index, which copies
    views = facts.hidden_copies > 0.0 and model.fused_qkv and not apart
    if views and attention.latent is None and model.position == "rope":
        inner = inner + widths.saved * size * here
    return projected + inner + scores, scores


def _mixer_bytes(model: Model, mixer: Mixer, shard: Shard, job: Job) -> Floats:
    """Return the bytes of a mixer: its input, and what its kernels keep, each rank of its part of the heads. `train`
    keeps what the projections give and what the last takes, and of a scan its result (`runtime.model.mixers`)."""
    work, widths = mixer.work(model.hidden), widths_of(job)
    inside = widths.saved * work.kept + SINGLE * work.kept_single
    if job.framework == OWN and not isinstance(mixer, Mamba):
        results = 1 if isinstance(mixer, ShortConvolution) else 2
        given = sum(product.outputs for product in work.products if product.cut == "columns")
        inside = widths.saved * (given + results * work.products[-1].inputs)
    return widths.saved_input * norm_tokens(shard, job) * model.hidden + tokens(shard, job) * inside / shard.tp


def _mlp_bytes(model: Model, mlp: Mlp, shard: Shard, job: Job) -> Floats:
    saved = widths_of(job).saved_input if _needed(job, "gate_proj", "up_proj") else 0.0
    size = tokens(shard, job) * mlp.width / shard.tp
    return (
        saved * _input_tokens(shard, job) * model.hidden
        + _inner_bytes(job, widths_of(job).saved_input, "down_proj", gated=mlp.gated) * size
        + widths_of(job).saved * bool(mlp.cut) * size  # what the deviation of the gates is of
    )


def _moe_bytes(model: Model, moe: Moe, shard: Shard, job: Job) -> Floats:
    widths, outer = widths_of(job), norm_tokens(shard, job)
    routed = _routed(moe, shard, job)
    router = outer * (widths.saved * model.hidden + 8.0 * moe.experts)  # logits and probabilities in fp32
    if memory_facts(job.framework).inner_copies and model.family in SINGLE_ROUTERS:
        router = router + SINGLE * outer * model.hidden
    inner = _inner_bytes(job, _expert_input(job), "experts", gated=moe.gated) * moe.expert_width / shard.etp
    outside = moe.latent or model.hidden
    taken = _expert_input(job) if _needed(job, "experts") else 0.0
    output = widths.saved * memory_facts(job.framework).expert_output
    experts = routed * (taken * outside + inner + output * outside)
    total = router + experts
    if moe.latent is not None:  # what enters the projections to the experts' width is the router's; and back
        total = total + widths.saved * outer * outside
    if moe.shared_width:
        total = total + _shared_bytes(model, moe, shard, job)
        weighed = np.where(shard.etp < shard.tp, outer, tokens(shard, job))  # by the gate: after the sum, or before it
        total = total + widths.saved * weighed * model.hidden * moe.shared_gate
    return np.asarray(total)


def _shared_bytes(model: Model, moe: Moe, shard: Shard, job: Job) -> Floats:
    """Bytes of shared experts beyond their input where it is the router's."""
    widths = widths_of(job)
    total = _mlp_bytes(model, Mlp(width=moe.shared_width, gated=moe.gated), shard, job)
    if widths.saved_input == widths.saved and _needed(job, "gate_proj", "up_proj"):
        total = total - widths.saved * norm_tokens(shard, job) * model.hidden
    return total


def _gradient_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return the gradients that live together in the backward pass of the feed-forward block: of its inner
    activations, before and after the non-linearity, and of its input. A block without one has those of what mixes
    tokens: of the input projection's result and of what enters the output projection. In one kernel the non-linearity
    runs backward when what entered the second product is gone."""
    size, gone = tokens(shard, job), float(memory_facts(job.framework).megatron_core)
    width, outer = np.zeros(len(shard.tp)), norm_tokens(shard, job) if gone else size
    if layer.mlp is None and layer.moe is None:
        width = size * _widest_projection(model, layer) / shard.tp
    if layer.mlp is not None:
        width = size * ((3.0 if layer.mlp.gated else 2.0) - gone) * layer.mlp.width / shard.tp
    if layer.moe is not None:
        routed, ways = _routed(layer.moe, shard, job), (3.0 if layer.moe.gated else 2.0) - gone
        width = np.maximum(width, routed * ways * layer.moe.expert_width / shard.etp)
    return widths_of(job).saved * (width + outer * model.hidden)


def _engine_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what Transformer Engine has beyond what is kept, [M]: when the second product of a feed-forward block runs
    backward, its gradients beside what tensor-parallel ranks gather of them; or, when attention does and what the block
    after it kept is gone, gradients of all that attention takes and gives, those of queries in fp32, too."""
    total, widths = np.zeros(len(shard.tp)), widths_of(job)
    if not memory_facts(job.framework).megatron_core:
        return total
    size, outer, attention = tokens(shard, job), norm_tokens(shard, job), layer.attention
    beside = outer * (shard.sequence_parallel & (shard.tp > 1)) + size
    after = total
    if layer.mlp is not None:
        total = widths.saved * (size * layer.mlp.width / shard.tp + beside * model.hidden)
        after = _mlp_bytes(model, layer.mlp, shard, job)
    if layer.moe is not None:
        after = _moe_bytes(model, layer.moe, shard, job)
    if attention is not None:
        kept = attention.out_width + _attention_inputs(attention)
        of_attention = size * (SINGLE * attention.query_width + widths.saved * kept) / shard.tp
        total = np.maximum(total, np.where(shard.flash, of_attention - after, 0.0))
    return np.asarray(total)


def _attention_inputs(attention: Attention) -> int:
    """Return the elements of a token that queries, keys and values have as attention takes them."""
    if attention.latent is not None:
        return _latent_width(attention)
    return attention.query_width + attention.key_width + attention.value_width


def _dispatched_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what is there beyond what is kept when experts' results go back to their tokens, [M]. Beside results of
    shared experts, of an all-to-all these are tokens as they were permuted and as they came, the experts' results, and
    these sorted back or received; with one expert what came is kept. Of an all-gather they are the results, and these
    added up for the tokens of all ranks, in the type of the router's weights, too
    (Megatron-LM core_v0.19.2: transformer/moe/{moe_layer,token_dispatcher}.py)."""
    moe, total = layer.moe, np.zeros(len(shard.tp))
    if moe is None or not memory_facts(job.framework).megatron_core:
        return total
    saved, outer, outside = widths_of(job).saved, norm_tokens(shard, job), moe.latent or model.hidden
    routed, alone = _routed(moe, shard, job), shard.ep >= moe.experts
    if job.options.dispatcher == "allgather":
        single = SINGLE * bool(moe.router_bias and saved < SINGLE)
        gathered = outer * shard.ep * np.where(shard.sequence_parallel, shard.etp, shard.etp / shard.tp)
        sent = saved * routed + (saved + single) * gathered
    else:
        before = 1.0 + (shard.ep > 1) * ~alone
        sent = saved * routed * (before / shard.etp + 1.0 + (~alone | (shard.ep > 1)))
    return np.asarray(outside * sent + saved * outer * model.hidden * bool(moe.shared_width))


def _unmerged_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what is there while gradients of the weights of a feed-forward block or of experts are on their way to
    buffers of another type (`MemoryFacts.unmerged`), [M], beyond what is kept: that of the second projection, beside
    that of its output, when its input has given way to its gradient; or those of the first ones, which a
    tensor-parallel rank makes together, when nothing of the block's inside is kept any more; those of all matrices of
    experts go together, too."""
    unmerged, total = memory_facts(job.framework).unmerged, np.zeros(len(shard.tp))
    if not unmerged or not job.trains("language"):
        return total
    saved = widths_of(job).saved
    copies = unmerged if job.precision != "fp32" else SINGLE
    if layer.mlp is not None:
        size, width = tokens(shard, job), layer.mlp.width / shard.tp
        inside = _inner_bytes(job, widths_of(job).saved_input, "down_proj", gated=layer.mlp.gated) * width
        together = np.where(shard.tp > 1, 1.0 + layer.mlp.gated, 1.0)
        first = copies * together - (copies - SINGLE) * (together - 1.0)
        second = (copies * width + saved * size) * model.hidden
        total = np.maximum(second, first * model.hidden * width + (saved * model.hidden - inside) * size)
    if layer.moe is not None:
        moe, routed = layer.moe, _routed(layer.moe, shard, job)
        outside, width = moe.latent or model.hidden, moe.expert_width / shard.etp
        matrices = moe.experts / shard.ep * outside * width
        inside = _inner_bytes(job, _expert_input(job), "experts", gated=moe.gated) * width * routed
        cast = SINGLE if copies > SINGLE else 0.0
        whole = (copies - cast) * (2.0 + moe.gated) + cast
        total = np.maximum(total, np.maximum(copies * matrices + saved * routed * outside, whole * matrices - inside))
    return np.asarray(total)


def _grouped_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what is there while experts' products run backward together, [M], beyond what is kept: a tensor for the
    gradient of each weight (`MemoryFacts.megatron_core`; Transformer Engine 2.8, module/grouped_linear.py), beside
    the gradients of what comes and goes; when the first products do, the block's inside is gone."""
    moe, total = layer.moe, np.zeros(len(shard.tp))
    if moe is None or not memory_facts(job.framework).megatron_core or not job.trains("language"):
        return total
    saved, outside, width = widths_of(job).saved, moe.latent or model.hidden, moe.expert_width / shard.etp
    routed, matrices = _routed(moe, shard, job), moe.experts / shard.ep * outside * width
    second = matrices + routed * (outside + width)
    first = (1.0 + moe.gated) * matrices + routed * (outside - width)
    return np.asarray(saved * np.maximum(first, second))


def _widest_projection(model: Model, layer: Layer) -> int:
    mixed, attention = 0, layer.attention
    if layer.mixer is not None:
        cut = [product for product in layer.mixer.work(model.hidden).products if product.cut != "whole"]
        mixed = sum(product.outputs for product in cut if product.cut == "columns") + cut[-1].inputs
    if attention is not None:
        mixed += attention.query_width + attention.key_width + attention.value_width + attention.out_width
    return mixed


def _magnitude_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what the lengths of rows that PEFT's DoRA trains need for their gradients: of each matrix the frozen
    product and the adapter's (peft/tuners/lora/dora.py 0.21: `DoraLinearLayer.forward`)."""
    total = np.zeros(len(shard.tp))
    for matrix in _dora_of_peft(model, layer, job):
        cut = shard.tp if matrix.split == "outputs" else 1
        total = total + 2.0 * widths_of(job).saved * tokens(shard, job) * matrix.copies * matrix.outputs / cut
    return total


def _norm_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what PEFT's DoRA has at a time to find the lengths of a matrix' rows, of the largest: an identity of its
    inputs, the adapter's product with it, that scaled, and the sum with the frozen weights."""
    sizes = [
        matrix.inputs * (matrix.inputs + 3.0 * matrix.outputs) / split_ways(matrix, shard)
        for matrix in _dora_of_peft(model, layer, job)
    ]
    return np.asarray(widths_of(job).saved * np.max(np.stack([np.zeros(len(shard.tp)), *sizes]), axis=0))


def _dora_of_peft(model: Model, layer: Layer, job: Job) -> list[Matrix]:
    peft = job.framework in PEFT and job.adapter is not None and job.adapter.dora
    return adapted(model, layer, job.adapter) if peft and job.adapter is not None else []


def _embedded_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what a layer keeps of a token's own embedding for it: the input of the first product, what that gives,
    the gate, and what the second product takes; the embedding itself is a part of what all layers have."""
    width = layer.embedded or 0
    return widths_of(job).saved * tokens(shard, job) * ((model.hidden if width else 0) + 3.0 * width)


def _embeddings_bytes(model: Model, shard: Shard, job: Job) -> Floats:
    """Return what is kept where a token's embeddings for all layers are made: the input of the product and of the norm,
    and the embeddings, which the layers multiply."""
    size, width = tokens(shard, job), model.embedded_width
    single = (2.0 * widths_of(job).saved + norm_copies(model, job)) * width
    streams = model.streams.end_kept(model.hidden, first=True) if model.streams else 0.0
    return np.asarray(size * (widths_of(job).saved * ((model.hidden if width else 0) + streams) + single))


def _streams_bytes(model: Model, streams: Streams, shard: Shard, job: Job) -> Floats:
    """Return what a layer keeps of several residual streams; the router's norm is of two of them."""
    once_more = widths_of(job).saved + norm_copies(model, job)
    kept = widths_of(job).saved * streams.kept(model.hidden) + once_more * model.hidden
    return np.asarray(tokens(shard, job) * kept)


def dummy_gradient_bytes(model: Model, shard: Shard, job: Job) -> Floats:
    """Return the bytes of tensors that autograd is given in place of gradients of matrices
    (`MemoryFacts.megatron_core`), one of each shape, [M]: those of all kinds of layers on every rank that has any.
    Those of experts do not stay."""
    needed = memory_facts(job.framework).megatron_core and job.trains("language")
    every = [
        Counter(matrix for matrix in matrices(model, layer) if matrix.target != "experts") for layer in model.kinds
    ]
    shapes = reduce(or_, every)  # the most that any kind has of each
    sizes = [
        count * np.asarray(matrix.inputs * matrix.outputs * matrix.copies / split_ways(matrix, shard))
        for matrix, count in shapes.items()
    ]
    return np.asarray(widths_of(job).saved * needed * np.sum([np.zeros(len(shard.tp)), *sizes], axis=0))


def _dequantised_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return the largest matrix of a layer in 16 bits where frozen weights are quantised: matrices are made wider one
    at a time, experts' one by one (bitsandbytes, autograd/_functions.py: MatMul4Bit, MatMul8bitLt)."""
    if job.adapter is None or not job.adapter.quantised:
        return np.zeros(len(shard.tp))
    sizes = [matrix.inputs * matrix.outputs / split_ways(matrix, shard) for matrix in matrices(model, layer)]
    return np.asarray(2.0 * np.max(np.stack(sizes), axis=0))
