"""Bytes that the parts of a layer keep for its backward pass.

They follow Korthikanti et al. 2022 (arXiv 2205.05198 §4), tensor by tensor, so that grouped queries, gated and expert
layers, latent attention and FlashAttention have their own counts; for a GPT layer the sum is the paper's
sbh(10 + 24/t + 5as/(ht)), with sequence parallelism sbh/t (34 + 5as/h).
"""

from __future__ import annotations

from collections import Counter

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
    norm_tokens,
    repeats,
    routed_tokens,
    tokens,
)
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.memory.sizes import SINGLE
from shardwright.spec.adapter import Target, adapted
from shardwright.spec.catalog.frameworks import OWN, experts_in_fp8
from shardwright.spec.images import taken_of
from shardwright.spec.job import Job
from shardwright.spec.layer import Attention, Layer, Mlp, Moe
from shardwright.spec.mixers import Mamba, Mixer, ShortConvolution
from shardwright.spec.model import Model, Tower
from shardwright.spec.streams import Streams

COPIES = 4.0  # documented: `hidden_copies` are two norms' inputs in fp32 in place of 16 bits, and their weights' inputs
_INPUTS = {  # which input a matrix takes
    "q_proj": "attention", "k_proj": "attention", "v_proj": "attention", "o_proj": "result",
    "gate_proj": "feed-forward", "up_proj": "feed-forward",
}  # fmt: skip
FALCON, JOINED = "falcon", ("phi3", "cohere", "cohere2")  # families of transformers, by how they make queries
# Families whose router transformers computes in fp32, from a copy of its input.
SINGLE_ROUTERS = frozenset({
    "axk1", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "exaone_moe",
    "flint", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "hy_v3", "kimi_linear", "kolibri1", "lara_mini", "nemotron_h",
    "solar_open",
})  # fmt: skip


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


def autocast_bytes(model: Model, layer: Layer, job: Job) -> float:
    """Return the bytes that a layer keeps beyond the formulas for each element of the hidden state where autocast makes
    products of 16 bits, not FSDP: each product beside fp32 weights has a copy of its input of its own (PyTorch 2.13,
    aten/src/ATen/autocast_mode.cpp: the cache is of weights alone), that of attention's result beside the result.
    PEFT's adapters take such copies, too, unless they are beside quantised matrices (peft 0.21, tuners/lora/{layer,bnb}
    .py). Where all weights are in fp32 the state is, too, and so is what a norm takes in or has before its weights."""
    if job.adapter is not None:
        beside = Counter(_INPUTS.get(matrix.target) for matrix in adapted(model, layer, job.adapter))
        copies = sum(max(beside[place] - 1, 0) for place in ("attention", "feed-forward"))
        return 0.0 if job.adapter.quantised else 2.0 * (copies + beside["result"])
    apart = layer.attention is not None and layer.attention.latent is None and not model.fused_qkv
    gated = layer.mlp is not None and layer.mlp.gated
    return 2.0 * (layer.norms + 2.0 * apart + gated)


def value_norm_copies(job: Job) -> float:
    """Return the same of a norm without weights."""
    return memory_facts(job.framework).hidden_copies * widths_of(job).saved / 2.0 / COPIES


def module_copies(model: Model, layer: Layer, copies: int, job: Job) -> float:
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


def eager_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
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


def cross_bytes(model: Model, attention: Attention, tower: Tower, shard: Shard, job: Job) -> Floats:
    """Return the bytes of attention over what an encoder gives: its input, queries, keys and values, what it gives, and
    scores as in self-attention. What the encoder gives is kept once for all layers (`tower_kept_bytes`)."""
    widths, size, read = widths_of(job), tokens(shard, job), float(taken_of(tower, job).all_tokens)
    projected = widths.saved_input * norm_tokens(shard, job) * model.hidden * needed(job, "q_proj")
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


def freed_of_modules(model: Model, layer: Layer, shard: Shard, job: Job, scores: Floats) -> Floats:
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
        freed = freed + widths.saved * tokens(shard, job) * latent_width(layer.attention) / shard.tp
    if layer.mlp is not None and modules & MLP:
        freed = freed + mlp_bytes(model, layer.mlp, shard, job)
    if moe is None:
        return freed
    if modules & NORMS:
        freed = freed + widths.saved * outer
    if modules & MOE:
        return np.asarray(freed + moe_bytes(model, moe, shard, job) - widths.saved * outer)
    if modules & ACTIVATION and needed(job, "experts"):
        freed = freed + expert_input(job) * routed_tokens(moe, shard, job) * moe.expert_width / shard.etp
    if modules & SHARED and moe.shared_width:
        freed = freed + _shared_bytes(model, moe, shard, job)
    return np.asarray(freed)


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


def input_tokens(shard: Shard, job: Job) -> Floats:
    """Return the tokens of which a rank keeps what products take in that its tensor-parallel ranks gather, [M]."""
    return tokens(shard, job) if memory_facts(job.framework).inputs_whole else norm_tokens(shard, job)


def latent_width(attention: Attention) -> int:
    """Queries, keys and values of latent attention after their projections up."""
    return attention.heads * (2 * attention.head_dim + attention.value_head_dim)


def expert_input(job: Job) -> float:
    """Bytes of an element that experts take in."""
    return widths_of(job).saved_input if experts_in_fp8(job.framework) else widths_of(job).saved


def needed(job: Job, *targets: Target) -> bool:
    """Whether the input of products with such weights is kept: for the gradients of the weights, or of adapters beside
    any of them."""
    beside = job.adapter.targets if job.adapter is not None else ()
    return job.trains("language") or any(target in beside for target in targets)


def inner_bytes(job: Job, saved_input: float, second: Target, *, gated: bool) -> float:
    """Bytes for each element of the width of a feed-forward block: the input of the non-linearity, and that of the
    second projection (`second`) unless its weights are frozen and without an adapter."""
    widths, copies = widths_of(job), memory_facts(job.framework).inner_copies
    saved = saved_input if needed(job, second) else 0.0
    return widths.saved_inner * (2.0 if gated else 1.0) + saved + copies * widths.saved / 2.0 * gated


def attention_bytes(model: Model, attention: Attention, shard: Shard, job: Job) -> tuple[Floats, Floats]:
    """Return the bytes of the attention block and, of these, those that recomputing core attention frees: what it
    gives, too, where nothing else needs that."""
    size, outer = tokens(shard, job), norm_tokens(shard, job)
    widths = widths_of(job)
    saved = widths.saved_input
    key_part = np.maximum(1.0 / shard.tp, 1.0 / attention.kv_heads)  # a rank has one key-value head at least
    queries, keys = attention.query_width / shard.tp, attention.key_width * key_part
    values = attention.value_width * key_part
    facts = memory_facts(job.framework)
    qkv = queries + (keys + values) * (attention.reused != "both") * np.where(facts.keys_gathered, shard.cp, 1)
    if attention.latent is None:
        wide = attention.inputs(model.hidden)
        projected = saved * input_tokens(shard, job) * wide * needed(job, "q_proj", "k_proj", "v_proj")
    else:
        mla = attention.latent
        ranks = (mla.query_rank or 0) + mla.kv_rank
        projected = (
            saved * input_tokens(shard, job) * model.hidden
            + (widths.saved + saved + norm_copies(model, job)) * outer * ranks
        )
        if facts.megatron_core and mla.query_rank is None:  # whose input it norms again (mla_qk_norm_config.py)
            projected = projected + saved * outer * model.hidden
        shared = mla.nope_head_dim * (facts.hidden_copies > 0.0)  # values are a part of what holds keys, too
        qkv = (latent_width(attention) + attention.heads * shared) / shard.tp
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
    unneeded = attention.gate is None and not needed(job, "o_proj")
    return projected + inner + scores, scores + unneeded * saved * size * attention.out_width / shard.tp


def mixer_bytes(model: Model, mixer: Mixer, shard: Shard, job: Job) -> Floats:
    """Return the bytes of a mixer: its input, and what its kernels keep, each rank of its part of the heads. `train`
    keeps what the projections give and what the last takes, and of a scan its result (`runtime.model.mixers`)."""
    work, widths = mixer.work(model.hidden), widths_of(job)
    inside = widths.saved * work.kept + SINGLE * work.kept_single
    whole = widths.saved_input * norm_tokens(shard, job) * (model.hidden + work.low)
    whole = whole + widths.saved * tokens(shard, job) * work.summed
    if job.framework == OWN and isinstance(mixer, Mamba):
        inside = 4.0 * widths.saved * mixer.inner
    elif job.framework == OWN:
        results = 1 if isinstance(mixer, ShortConvolution) else 2
        given = sum(product.outputs for product in work.products if product.cut == "columns")
        inside = widths.saved * (given + results * work.products[-1].inputs)
    return whole + tokens(shard, job) * inside / shard.tp


def low_rank_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what adapters keep beyond the input of their frozen product: what A gives, of all positions where B is
    split; and in `train` A, which it joins to those of other matrices with the same input
    (`runtime.model.products.entered`)."""
    total = np.zeros(len(shard.tp))
    if job.adapter is None:
        return total
    for matrix in adapted(model, layer, job.adapter):
        size = tokens(shard, job) if matrix.split == "outputs" else norm_tokens(shard, job)
        if matrix.target == "experts" and layer.moe is not None:
            size = routed_tokens(layer.moe, shard, job)
        joined = matrix.inputs * (job.framework == OWN and matrix.split == "outputs")
        total = total + widths_of(job).saved * job.adapter.rank * (size + joined)
    return total


def before_adapters_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> tuple[Floats, Floats]:
    """Return what a layer keeps before its first adapter, [M], of which none of it has a gradient if nothing is trained
    before the layer; and what core attention that runs again frees of that."""
    outer, size, zero = norm_tokens(shard, job) * model.hidden, tokens(shard, job), np.zeros(len(shard.tp))
    widths, attention, mlp = widths_of(job), layer.attention, layer.mlp
    norm = outer * (widths.saved + norm_copies(model, job))
    apart = layer.mixer or layer.streams or layer.cross or model.parallel_block or layer.norms != 2
    if attention is None or attention.latent is not None or mlp is None or apart or job.adapter is None:
        return norm, zero
    beside = {matrix.target for matrix in adapted(model, layer, job.adapter)}
    if beside & {"q_proj", "k_proj", "v_proj"}:
        return norm, zero
    whole, freed = attention_bytes(model, attention, shard, job)
    if "o_proj" in beside:
        return norm + whole - widths.saved_input * size * attention.out_width / shard.tp, freed
    if beside & {"gate_proj", "up_proj"}:
        # Operators run one by one keep of a gate and what it gates what the other's gradient needs.
        unneeded = 0 if not mlp.gated else 1 if "up_proj" not in beside else 2 if "gate_proj" not in beside else 0
        alone = unneeded * widths.saved * size * mlp.width / shard.tp * (memory_facts(job.framework).inner_copies > 0.0)
        return 2.0 * norm + whole + alone, freed
    inside = inner_bytes(job, 0.0, "down_proj", gated=mlp.gated) * size * mlp.width / shard.tp
    return 2.0 * norm + whole + inside, freed


def mlp_bytes(model: Model, mlp: Mlp, shard: Shard, job: Job) -> Floats:
    saved = widths_of(job).saved_input if needed(job, "gate_proj", "up_proj") else 0.0
    size = tokens(shard, job) * mlp.width / shard.tp
    return (
        saved * input_tokens(shard, job) * model.hidden
        + inner_bytes(job, widths_of(job).saved_input, "down_proj", gated=mlp.gated) * size
        + widths_of(job).saved * bool(mlp.cut) * size  # what the deviation of the gates is of
    )


def moe_bytes(model: Model, moe: Moe, shard: Shard, job: Job) -> Floats:
    widths, outer = widths_of(job), norm_tokens(shard, job)
    routed = routed_tokens(moe, shard, job)
    router = outer * (widths.saved * model.hidden + 8.0 * moe.experts)  # logits and probabilities in fp32
    if memory_facts(job.framework).inner_copies and model.family in SINGLE_ROUTERS:
        router = router + SINGLE * outer * model.hidden
    inner = inner_bytes(job, expert_input(job), "experts", gated=moe.gated) * moe.expert_width / shard.etp
    outside = moe.latent or model.hidden
    taken = expert_input(job) if needed(job, "experts") else 0.0
    looped = job.options.expert_products == "loop"  # index_add_ keeps what it adds, weighed (derivatives.yaml)
    output = widths.saved * (memory_facts(job.framework).expert_output + looped)
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
    total = mlp_bytes(model, Mlp(width=moe.shared_width, gated=moe.gated), shard, job)
    if widths.saved_input == widths.saved and needed(job, "gate_proj", "up_proj"):
        total = total - widths.saved * norm_tokens(shard, job) * model.hidden
    return total


def embedded_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what a layer keeps of a token's own embedding for it: the input of the first product, what that gives,
    the gate, and what the second product takes; the embedding itself is a part of what all layers have."""
    width = layer.embedded or 0
    return widths_of(job).saved * tokens(shard, job) * ((model.hidden if width else 0) + 3.0 * width)


def embeddings_bytes(model: Model, shard: Shard, job: Job) -> Floats:
    """Return what is kept where a token's embeddings for all layers are made: the input of the product and of the norm,
    and the embeddings, which the layers multiply."""
    size, width = tokens(shard, job), model.embedded_width
    single = (2.0 * widths_of(job).saved + norm_copies(model, job)) * width
    streams = model.streams.end_kept(model.hidden, first=True) if model.streams else 0.0
    return np.asarray(size * (widths_of(job).saved * ((model.hidden if width else 0) + streams) + single))


def shared_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what a layer keeps beside a block that it shares with others, if any: what its square product takes, which
    the block gives, and what the second products of low rank take."""
    products = layer.shared_products(model.hidden)
    between = sum(product.outputs for product in products[1:] if product.cut == "whole")
    given = model.hidden if products and job.trains("language") else 0
    return np.asarray(widths_of(job).saved_input * norm_tokens(shard, job) * (given + between))


def streams_bytes(model: Model, streams: Streams, shard: Shard, job: Job) -> Floats:
    """Return what a layer keeps of several residual streams; the router's norm is of two of them."""
    once_more = widths_of(job).saved + norm_copies(model, job)
    kept = widths_of(job).saved * streams.kept(model.hidden) + once_more * model.hidden
    return np.asarray(tokens(shard, job) * kept)
