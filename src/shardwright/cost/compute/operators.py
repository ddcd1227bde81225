"""What a transformer layer computes: its operators, forward and backward, as columns for an efficiency model.

Shapes follow Megatron-LM's sharding: tensor parallelism splits heads and feed-forward columns, context parallelism
the sequence, expert parallelism the experts. Every operator carries FLOPs and compulsory bytes of one GPU and one
micro-batch.

torchtitan's per-operator policy keeps the output of attention and of every other matrix product, and repeats all
else (pytorch/torchtitan: activation checkpointing, mode "selective", option "op").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from shardwright.arrays import Array, Bools, Floats, Ints
from shardwright.cost.compute.flops import score_flops_per_token
from shardwright.cost.compute.operator_table import (
    ATTENTION,
    BACKWARD,
    FORWARD,
    GEMM,
    LOOKUP,
    MEMORY,
    NORM,
    POINTWISE,
    SOFTMAX,
    Operator,
    OperatorTable,
)
from shardwright.records import record
from shardwright.spec.adapter import Adapter, Matrix, adapted, matrices
from shardwright.spec.catalog.frameworks import experts_in_fp8, framework_has, framework_rows
from shardwright.spec.images import taken_of
from shardwright.spec.job import Job
from shardwright.spec.layer import Attention, Layer, Mlp, Moe
from shardwright.spec.mixers import Mixer
from shardwright.spec.model import Model, Tower
from shardwright.spec.options import MODULES
from shardwright.spec.streams import Streams

# Documented.
FLASH_BACKWARD_FLOPS = 2.5  # recomputed scores: 5 matrix products for the 2 of the forward pass (arXiv 2307.08691)
# Documented. Per weight: a gradient is added (read 4 and write 4 in fp32, 2 and 2 in bf16), not written in 16 bits.
ACCUMULATE_BYTES, ACCUMULATE_BF16_BYTES = 6.0, 2.0
# Documented. Backward, a chunked scan runs most of its products again, and two for each of them: both mamba_ssm
# (mamba_chunk_scan_combined) and fla (chunk_gated_delta_rule) compute the states anew.
SCAN_BACKWARD = 3.0
# Quantisation of a gradient for fp8, per element: read 16 bits, write fp8 twice, for both products. That of an input is
# fused with the operator before, which writes fp8 twice in place of 16 bits.
CAST_BYTES = 4.0  # documented
# Documented. Per logit, forward and backward: cast to fp32, max, exp and sum, gradient, cast. Unfused, each of cast,
# maximum, difference, exponential, sum and quotient goes over the logits, and the gradient is scaled before its cast
# (megatron/core/tensor_parallel/cross_entropy.py, core_v0.19.2).
LOSS_BYTES = {"fused": (18.0, 12.0), "unfused": (38.0, 14.0), "chunked": (18.0, 12.0), "tiled": (18.0, 12.0)}
# Documented. Bytes per score of attention that is not fused: products write and read it, softmax and dropout go over
# it; more where each of conversion, scale, mask and conversion back does. A fused softmax does so at once, of scores in
# 16 bits of 17 to 2,048 keys, where queries, and the heads of all samples of a rank, come in fours
# (NVIDIA/Megatron-LM@0cb36de: megatron/model/fused_softmax.py, FusedScaleMaskSoftmax.forward).
SOFTMAX_BYTES, SPLIT_BYTES = 16.0, 33.0
FUSED_KEYS, FUSED_ROWS = (17, 2048), 4  # documented
# Documented. Of log-probabilities by PyTorch's own operators, as other trainers than TRL take them: cast, log-softmax
# and a mean; zeros with the gradient of one word each, that of the log-softmax, without the last position, its cast.
LOG_PROBABILITY_BYTES = 18.0, 34.0
# Documented. A kernel adds an adapter's product to the frozen one as it multiplies: it reads 16 bits of each output,
# and backward of each input's gradient. Eager code, as PEFT's, moves 8 bytes more of each; published runs show none of
# them. DoRA per weight: BA and W + BA are written and read for the lengths of rows; per output both parts are scaled
# (PEFT 0.21, peft/tuners/lora/dora.py: DoraLinearLayer.forward).
ADDED_BYTES, SCALED_BYTES, LENGTH_BYTES = 2.0, 8.0, 10.0
# Documented. Bytes of an element that experts one after another move beside their products, of each row forward: it is
# gathered, weighed, and added to its token; backward: gathered, multiplied by the weight and by what the expert gave,
# the gradients of both first products summed and added to the token's; and of all tokens, for each expert, as its
# gradient begins at zeros and is summed (transformers 4.57: Qwen3MoeSparseMoeBlock.forward, and what PyTorch 2.13 runs
# for its gradients).
LOOP_BYTES, LOOP_BACKWARD_BYTES, LOOP_TOKEN_BYTES = 14.0, 28.0, 8.0
# The modules that selective recomputation may repeat, one bit each; numeric.
MODULE_BITS = {name: 1 << place for place, name in enumerate(MODULES)}
CORE, ACTIVATION, NORMS, UP, MLP, MOE, SHARED = MODULE_BITS.values()
# torchtitan keeps every second product (`op` of distributed/activation_checkpoint.py, v0.3).
KEPT_PRODUCTS = 0.5  # documented


@record
class Shard:
    """How one GPU holds a layer, as columns [M]: parallel degrees, micro-batch and the switches that change what a
    layer computes or sends."""

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    micro_batch: Ints
    sequence_parallel: Bools
    flash: Bools
    overlap_tp: Bools


def tokens(shard: Shard, job: Job) -> Floats:
    """Return tokens of one micro-batch on one context-parallel rank, [M]."""
    return shard.micro_batch * job.sample_tokens / shard.cp


def norm_tokens(shard: Shard, job: Job) -> Floats:
    """Return tokens in the regions between tensor-parallel blocks, which sequence parallelism splits, [M]."""
    return tokens(shard, job) / np.where(shard.sequence_parallel, shard.tp, 1)


def routed_tokens(moe: Moe, shard: Shard, job: Job) -> Floats:
    """Return the rows that the experts of a rank take, each a copy of a token for one expert, [M]."""
    gathered = np.where(shard.sequence_parallel, shard.etp, shard.etp / shard.tp)
    size = norm_tokens(shard, job)
    return np.asarray(size * expert_copies(moe, size, shard.ep, job) * gathered)


def expert_copies(moe: Moe, size: Floats, ranks: Array, job: Job) -> Floats:
    """Return the copies of a token of ranks with `size` tokens each that the experts of one take, [M], the fullest of
    as many `ranks`: as many as it is routed to, of rows that are spread evenly, or more where they are not
    (`Options.expert_imbalance`), all rows at most. With a capacity an expert takes so many rows of a rank at most, and
    those that are padded exactly so many (Megatron-LM core_v0.19.2, transformer/moe/moe_utils.py: `get_capacity`)."""
    copies = np.full_like(size, moe.top_k)
    if job.options.expert_imbalance is not None:
        copies = copies * np.minimum(job.options.expert_imbalance, ranks)
    if job.options.expert_capacity is None:
        return copies
    most = np.ceil(size * moe.top_k / moe.experts * job.options.expert_capacity) * moe.experts / size
    return most if job.options.padded else np.minimum(most, copies)


def layer_operators(model: Model, layer: Layer, shard: Shard, job: Job) -> Iterator[Operator]:
    """Yield the operators of one layer."""
    hidden = float(model.hidden)
    outer = norm_tokens(shard, job)
    apart = unfused_norms(layer) / max(layer.norms, 1)
    yield from memory_bound(layer.norms * 4.0 * outer * hidden, backward=2.0, form=NORM, modules=NORMS, share=apart)
    yield from memory_bound(layer.sublayers * 6.0 * outer * hidden, backward=1.0)  # residual adds (with dropout, fused)
    if layer.attention is not None:
        yield from _attention(model.hidden, layer.attention, shard, job)
        if model.position == "relative":
            yield from _added_to_scores(layer.attention, shard, job, float(job.seq_len))
    if layer.streams is not None:
        yield from _streams(model.hidden, layer.streams, shard, job)
    if layer.scaled:
        yield from memory_bound(layer.sublayers * 4.0 * outer * hidden, backward=1.5)
    yield from _beside_shared(model.hidden, layer, shard, job)
    if layer.mixer is not None:
        yield from _mixer(model.hidden, layer.mixer, shard, job)
    if layer.cross is not None and model.tower is not None:
        yield from _cross_attention(hidden, layer.cross, model.tower, shard, job)
        if model.position == "relative":
            yield from _added_to_scores(layer.cross, shard, job, float(taken_of(model.tower, job).all_tokens))
    if layer.mlp is not None:
        yield from _mlp(hidden, layer.mlp, shard, job)
    if layer.moe is not None:
        yield from _moe(hidden, layer.moe, shard, job)
    if layer.embedded:
        yield from _embedded(hidden, float(layer.embedded), shard, job)
    if job.adapter is not None:
        yield from _beside_frozen(model, layer, job.adapter, shard, job)


def _embedded(hidden: float, width: float, shard: Shard, job: Job) -> Iterator[Operator]:
    """Yield what a layer does with a token's own embedding for it, which every tensor-parallel rank does whole."""
    size = tokens(shard, job)
    yield from linear(size, width, hidden, job)
    yield from memory_bound(10.0 * size * width, backward=1.6)  # activation, and the product with the embedding
    yield from linear(size, hidden, width, job)


def _beside_shared(hidden: int, layer: Layer, shard: Shard, job: Job) -> Iterator[Operator]:
    """Yield what a layer does beside a block that it shares, if any: joins the embedding to the hidden state,
    multiplies by the matrices that are its own, and adds what those of low rank give."""
    if layer.shared is None:
        return
    size, outer = tokens(shard, job), norm_tokens(shard, job)
    yield from memory_bound(8.0 * outer * hidden, backward=1.0)
    for product in layer.shared_products(hidden):
        if product.cut == "whole":
            yield from linear(outer, float(product.outputs), float(product.inputs), job)
        else:
            yield from linear(size, product.outputs / shard.tp, float(product.inputs), job)
            yield from memory_bound(6.0 * size * product.outputs / shard.tp, backward=0.0)


def _streams(hidden: int, streams: Streams, shard: Shard, job: Job) -> Iterator[Operator]:
    """Yield what a layer does with several residual streams, which every tensor-parallel rank does whole."""
    size = tokens(shard, job)
    for inputs, outputs in streams.products(hidden):
        yield from _gemm(size, float(outputs), float(inputs), job)
    yield from _batched(np.full_like(size, float(hidden)), streams.count, streams.count, size, backward=2.0)
    yield from memory_bound(2.0 * size * streams.moved(hidden), backward=1.5)
    yield from memory_bound(4.0 * size * hidden, backward=2.0, form=NORM)  # one norm is of two streams


def unfused_norms(layer: Layer) -> int:
    """Return the norms that Megatron-LM does not fuse with the product after them: before latent attention, and before
    experts (megatron/core/models/gpt/gpt_layer_specs.py, core_v0.19.2)."""
    return (layer.latent is not None) + (layer.moe is not None)


def embedding_operators(model: Model, shard: Shard, job: Job) -> Iterator[Operator]:
    """Yield the look-up of token (and position) embeddings, and what makes those for each layer of it and of a table;
    backward adds into fp32 gradients."""
    size, beside = tokens(shard, job), float(model.embedded_width)
    yield from memory_bound(4.0 * size * (model.hidden + beside), backward=3.0, form=LOOKUP)
    if model.streams is not None:
        yield from _ends_of_streams(model, shard, job)
    if beside:
        yield from linear(size, beside, float(model.hidden), job)
        yield from memory_bound(4.0 * size * beside, backward=2.0, form=NORM)
        yield from memory_bound(6.0 * size * beside, backward=1.0)


def _ends_of_streams(model: Model, shard: Shard, job: Job) -> Iterator[Operator]:
    """Yield what makes the other residual streams of one, or one of them, each scaled to the length of the first."""
    others = (model.streams.count if model.streams else 1) - 1
    size = tokens(shard, job)
    yield from linear(size, float(others * model.hidden), float(model.hidden), job)
    yield from memory_bound(14.0 * size * others * model.hidden, backward=1.5)


def head_operators(model: Model, shard: Shard, job: Job) -> Iterator[Operator]:
    """Yield final norm, output projection and cross-entropy over the vocabulary, and the same for each
    multi-token-prediction layer after that layer itself (arXiv 2412.19437 §2.2)."""
    size, outer = tokens(shard, job), norm_tokens(shard, job)
    logits = size * model.head_outputs / shard.tp
    for depth in range(1 + model.mtp_layers):
        if depth:
            yield from _gemm(size, model.hidden / shard.tp, 2.0 * model.hidden, job)
            yield from layer_operators(model, model.layers[-1], shard, job)
        yield from memory_bound(4.0 * outer * model.hidden, backward=2.0, form=NORM)
        if model.streams is not None:
            yield from _ends_of_streams(model, shard, job)
        yield from _gemm(size, model.head_outputs / shard.tp, float(model.hidden), job, again=job.loss == "tiled")
        forward, backward = _loss_bytes(job)
        yield from memory_bound(forward * logits, backward=backward / forward)


def _loss_bytes(job: Job) -> tuple[float, float]:
    others = job.preference is not None and job.preference.by != "trl"
    return LOG_PROBABILITY_BYTES if others else LOSS_BYTES[job.loss or "fused"]


def _gemm(
    m: Array,
    n: Array | float,
    k: Array | float,
    job: Job,
    *,
    groups: Array | float = 1.0,
    low_precision: bool = False,
    modules: int = 0,
    again: bool = False,
) -> Iterator[Operator]:
    """Yield a GEMM forward, and its gradients for input and weight; before these once more with `again`."""
    ones = np.ones_like(m, dtype=float)
    m, n, k, groups = m * ones, n * ones, k * ones, groups * ones
    flops = 2.0 * m * n * k * groups
    size = 2.0 * (m * k + k * n + m * n) * groups
    shapes = [(FORWARD, m, n, k, False), (BACKWARD, m, k, n, False), (BACKWARD, k, n, m, True)]
    shapes += [(BACKWARD, m, n, k, False)] * again
    for direction, rows, columns, inner, of_weight in shapes:
        yield Operator(
            kind=GEMM,
            direction=direction,
            m=rows,
            n=columns,
            k=inner,
            groups=groups,
            flops=flops,
            bytes=size,
            modules=modules,
            low_precision=low_precision,
            weight_gradient=of_weight,
        )
    accumulated = ACCUMULATE_BF16_BYTES if job.bf16_gradients else ACCUMULATE_BYTES
    yield from memory_bound(accumulated * n * k * groups, forward=0.0, backward=1.0, weight_gradient=True)


def linear(
    m: Array, n: Array | float, k: Array | float, job: Job, *, groups: Array | float = 1.0, modules: int = 0
) -> Iterator[Operator]:
    """Yield a GEMM that runs in fp8 where the job does, with the quantisation of its gradient."""
    yield from _gemm(m, n, k, job, groups=groups, low_precision=True, modules=modules)
    if job.precision == "fp8":
        yield from memory_bound(CAST_BYTES * m * n * groups, forward=0.0, backward=1.0)


def memory_bound(
    size_bytes: Array,
    *,
    forward: float = 1.0,
    backward: float,
    modules: int = 0,
    share: float = 1.0,
    weight_gradient: bool = False,
    form: int = POINTWISE,
) -> Iterator[Operator]:
    """Yield a memory-bound operator that moves `forward` times `size_bytes` forward, `backward` times backward."""
    zero = np.zeros_like(size_bytes)
    for direction, factor in ((FORWARD, forward), (BACKWARD, backward)):
        yield Operator(
            kind=MEMORY,
            direction=direction,
            m=zero,
            n=zero,
            k=zero,
            groups=zero,
            flops=zero,
            bytes=size_bytes * factor,
            modules=modules,
            share=share,
            weight_gradient=weight_gradient,
            form=form,
        )


def _attention(width: int, attention: Attention, shard: Shard, job: Job) -> Iterator[Operator]:
    size, outer, hidden = tokens(shard, job), norm_tokens(shard, job), float(width)
    tp = shard.tp
    if attention.latent is None:
        yield from linear(size, sum(attention.projected_widths) / tp, float(attention.inputs(width)), job)
    else:
        mla = attention.latent
        up = attention.query_width / tp
        if mla.query_rank is None:
            yield from linear(size, up, hidden, job, modules=UP)
        else:
            yield from linear(outer, float(mla.query_rank), hidden, job)
            yield from linear(size, up, float(mla.query_rank), job, modules=UP)
        yield from linear(outer, float(mla.kv_rank + mla.rope_head_dim), hidden, job)
        keys_values = attention.heads * (mla.nope_head_dim + attention.value_head_dim) / tp
        yield from linear(size, keys_values, float(mla.kv_rank), job, modules=UP)
    rotated = attention.query_width + attention.key_width
    yield from memory_bound(4.0 * size * rotated / tp, backward=1.0, modules=UP if attention.latent else 0)
    if attention.sparse is not None and attention.latent is not None:
        yield from _indexer(hidden, attention, shard, job)
    yield from _core_attention(attention, shard, job)
    if attention.gate is not None:
        yield from linear(size, attention.gate_width / tp, hidden, job)
        yield from memory_bound(6.0 * size * attention.out_width / tp, backward=5 / 3)
    yield from linear(size, hidden, attention.out_width / tp, job)


def _indexer(hidden: float, attention: Attention, shard: Shard, job: Job) -> Iterator[Operator]:
    """Yield the indexer of sparse attention, which every tensor-parallel rank has whole: its projections, the scores of
    all tokens before a query summed over its heads, and the choice of the best, over fp32 scores."""
    sparse, mla, size = attention.sparse, attention.latent, tokens(shard, job)
    assert sparse is not None and mla is not None, "an indexer reads compressed queries"
    if not sparse.heads:
        return
    yield from linear(size, float(sparse.heads * sparse.head_dim), float(mla.query_rank or hidden), job)
    yield from linear(size, float(sparse.head_dim + sparse.heads), hidden, job)
    before = job.attended_tokens / 2.0 if attention.causal else float(job.attended_tokens)
    yield from _batched(size, before, float(sparse.head_dim), float(sparse.heads), backward=2.0)
    yield from memory_bound(8.0 * size * before, backward=1.0, form=SOFTMAX)


def _mixer(hidden: int, mixer: Mixer, shard: Shard, job: Job) -> Iterator[Operator]:
    """Yield the operators of a mixer: its products, the chunked scan, and what convolution, gates and norms move."""
    work, size, tp = mixer.work(hidden), tokens(shard, job), shard.tp
    for product in work.products:
        rows, columns = (tp if product.cut == side else np.ones_like(tp) for side in ("rows", "columns"))
        yield from linear(size, product.outputs / columns, product.inputs / rows, job)
    yield from memory_bound(2.0 * size * work.moved / tp, backward=2.0)
    for part in work.scan:
        chunks = size / work.chunk * part.heads / tp
        yield from _batched(part.rows * np.ones_like(size), part.columns, part.inner, chunks, backward=SCAN_BACKWARD)


def _batched(
    m: Array, n: Array | float, k: Array | float, groups: Array | float, *, backward: float
) -> Iterator[Operator]:
    """Yield products of activations with activations, which have no weights, `backward` times as many backward."""
    ones = np.ones_like(m, dtype=float)
    m, n, k, groups = m * ones, n * ones, k * ones, groups * ones
    for direction, times in ((FORWARD, 1.0), (BACKWARD, backward)):
        count = groups * times
        yield Operator(
            kind=GEMM,
            direction=direction,
            m=m,
            n=n,
            k=k,
            groups=count,
            flops=2.0 * m * n * k * count,
            bytes=2.0 * (m * k + k * n + m * n) * count,
        )


def _cross_attention(hidden: float, attention: Attention, tower: Tower, shard: Shard, job: Job) -> Iterator[Operator]:
    """Yield attention of the decoder's tokens over what a tower gives, which needs no gradient where that is frozen."""
    size, tp, read = tokens(shard, job), shard.tp, float(taken_of(tower, job).all_tokens)
    yield from linear(size, attention.query_width / tp, hidden, job)
    both = (attention.key_width + attention.value_width) / tp
    trained = job.trains(tower.part) or bool(tower.projector and job.trains("projector"))
    for operator in linear(shard.micro_batch * read, both, float(tower.given_width), job):
        if operator.kind != GEMM or operator.direction == FORWARD or operator.weight_gradient or trained:
            yield operator
    yield from _core_attention(attention, shard, job, read)
    yield from linear(size, hidden, attention.out_width / tp, job)


def _added_to_scores(attention: Attention, shard: Shard, job: Job, keys: float) -> Iterator[Operator]:
    """Yield what is added to the scores of fused attention: it is masked, written and read."""
    scores = 2.0 * tokens(shard, job) * keys * attention.heads / shard.tp
    yield from memory_bound(np.where(shard.flash, 3.0 * scores, 0.0), backward=1.0, modules=CORE)


def _core_attention(attention: Attention, shard: Shard, job: Job, others: float | None = None) -> Iterator[Operator]:
    """Yield core attention: one fused operator with FlashAttention, else two batched products and a softmax. Keys are
    those of the sequence, or so many `others`."""
    size, keys = tokens(shard, job), float(job.seq_len if others is None else others)
    attended = job.attended_tokens if others is None else others
    core = attention if attention.sparse is None else replace(attention, sparse=replace(attention.sparse, heads=0))
    heads = attention.heads / shard.tp
    most = attention.window or (attention.sparse.top_k if attention.sparse else attended)
    span = min(attended, most)
    widths = attention.head_dim + attention.value_head_dim
    full_flops = 2.0 * size * keys * heads * widths
    flash_flops = size * score_flops_per_token(core, attended) / shard.tp
    flops = np.where(shard.flash, flash_flops, full_flops)
    read = size if others is None else shard.micro_batch * others
    inputs = 2.0 * (2 * size * attention.out_width + read * (attention.key_width + attention.value_width)) / shard.tp
    for direction, work, traffic in ((FORWARD, 1.0, 1.0), (BACKWARD, FLASH_BACKWARD_FLOPS, 2.0)):
        factor = np.where(shard.flash, work, 1.0 if direction == FORWARD else 2.0)
        yield Operator(
            kind=ATTENTION,
            direction=direction,
            m=size,
            n=np.full_like(size, span),
            k=np.full_like(size, attention.head_dim),
            groups=heads * np.ones_like(size),
            flops=flops * factor,
            bytes=inputs * traffic,
            modules=CORE,
        )
    # A fused one scales, masks and normalises scores in one pass at the memory's rate, as others add and multiply
    # (arXiv 2104.04473, section 4.2); PyTorch's softmax, which was measured, reaches two thirds of that.
    form = POINTWISE if framework_has(job.framework, "fused_softmax") else SOFTMAX
    moved = np.where(splits_softmax(attention, shard, job, keys), SOFTMAX_BYTES + SPLIT_BYTES, SOFTMAX_BYTES)
    scores = np.where(shard.flash, 0.0, moved) * size * keys * heads
    yield from memory_bound(scores, backward=1.0, modules=CORE, form=form)


def splits_softmax(attention: Attention, shard: Shard, job: Job, keys: float) -> Bools:
    """Return where a framework's fused softmax cannot run, [M], so that each of its steps is a kernel of its own."""
    fuses = framework_has(job.framework, "fused_softmax") and job.precision != "fp32"
    if not fuses:
        return np.zeros(np.shape(shard.flash), dtype=bool)
    least, most = FUSED_KEYS
    rows = shard.micro_batch * attention.heads / shard.tp
    able = least <= keys <= most and job.seq_len % FUSED_ROWS == 0
    return np.asarray(~shard.flash & ~(able & (rows % FUSED_ROWS == 0)))


def _mlp(hidden: float, mlp: Mlp, shard: Shard, job: Job, *, modules: int = MLP) -> Iterator[Operator]:
    size, width = tokens(shard, job), mlp.width / shard.tp
    up = 2 if mlp.gated else 1
    yield from linear(size, up * width, hidden, job, modules=modules)
    yield from memory_bound(2.0 * (up + 1) * size * width, backward=5 / 3, modules=modules)
    if mlp.cut:  # mean and deviation of the gates, the difference from what is cut off, and what is left
        yield from memory_bound(12.0 * size * width, backward=1.0, modules=modules)
    yield from linear(size, hidden, width, job, modules=modules)


def _moe(hidden: float, moe: Moe, shard: Shard, job: Job) -> Iterator[Operator]:
    """Yield router, permutation, routed and shared experts. Tokens are taken as spread evenly over the experts."""
    outer = norm_tokens(shard, job)
    local = moe.experts / shard.ep
    routed = routed_tokens(moe, shard, job)
    width, up = moe.expert_width / shard.etp, 2 if moe.gated else 1
    yield from _gemm(outer, float(moe.experts), hidden, job, modules=MOE)
    inner = float(moe.latent or hidden)
    if moe.latent is not None:
        yield from linear(outer, inner, hidden, job, modules=MOE)
        yield from linear(outer, hidden, inner, job, modules=MOE)
    if job.options.expert_products == "loop":
        alone = _expert(routed / local, outer, inner, width, up, job)
        yield from (replace(operator, times=local) for operator in alone)
    else:
        yield from memory_bound(2 * 4.0 * routed * inner, backward=1.0, modules=MOE)  # permute and un-permute
        product = linear if experts_in_fp8(job.framework) else _gemm
        yield from product(routed / local, up * width, inner, job, groups=local, modules=MOE)
        yield from memory_bound(2.0 * (up + 1) * routed * width, backward=5 / 3, modules=MOE | ACTIVATION)
        yield from product(routed / local, inner, width, job, groups=local, modules=MOE)
    if moe.shared_width:
        shared = Mlp(width=moe.shared_width, gated=moe.gated)
        yield from _mlp(hidden, shared, shard, job, modules=MOE | SHARED)


def _expert(rows: Floats, outer: Floats, inner: float, width: Floats, up: int, job: Job) -> Iterator[Operator]:
    """Yield what an expert does with its rows where none waits for the others': each product by itself."""
    yield from memory_bound(LOOP_BYTES * rows * inner, backward=LOOP_BACKWARD_BYTES / LOOP_BYTES, modules=MOE)
    yield from memory_bound(LOOP_TOKEN_BYTES * outer * inner, forward=0.0, backward=1.0, modules=MOE)
    for _ in range(up):
        yield from _gemm(rows, width, inner, job, modules=MOE)
    yield from memory_bound(2.0 * (up + 1) * rows * width, backward=5 / 3, modules=MOE | ACTIVATION)
    yield from _gemm(rows, inner, width, job, modules=MOE)


def split_ways(matrix: Matrix, shard: Shard) -> Array:
    """Return over how many GPUs a matrix is split, [M]: experts over those that have parts of an expert."""
    if not matrix.split:
        return np.ones_like(shard.tp)
    return shard.etp if matrix.target == "experts" else shard.tp


def _beside_frozen(model: Model, layer: Layer, adapter: Adapter, shard: Shard, job: Job) -> Iterator[Operator]:
    """Yield what frozen weights cost beside their products: dequantisation in each pass, and adapters. A weight is read
    as it is kept and written in 16 bits."""
    if adapter.quantised:
        weights = sum(
            _copies(matrix, shard) * matrix.inputs * matrix.outputs / split_ways(matrix, shard)
            for matrix in matrices(model, layer)
            if matrix.target != "experts" or not job.experts_unquantised
        )
        yield from memory_bound((job.kept_bytes[0] + 2.0) * np.asarray(weights), backward=1.0)
    for matrix in adapted(model, layer, adapter):
        yield from _low_rank(matrix, layer, adapter, shard, job)


def _copies(matrix: Matrix, shard: Shard) -> Array:
    """Return how many of a matrix's kind a GPU has of a layer, [M]."""
    return matrix.copies / shard.ep if matrix.target == "experts" else np.ones_like(shard.tp)


def _low_rank(matrix: Matrix, layer: Layer, adapter: Adapter, shard: Shard, job: Job) -> Iterator[Operator]:
    """Yield the two products of an adapter with all their gradients, and the sum with the frozen product. For the
    lengths of rows DoRA multiplies B by A, in PEFT by A times an identity of the inputs (peft/tuners/lora/dora.py)."""
    ways, groups, size = split_ways(matrix, shard), _copies(matrix, shard), tokens(shard, job)
    if matrix.target == "experts" and layer.moe is not None:
        size = routed_tokens(layer.moe, shard, job) / groups
    inputs = matrix.inputs / (ways if matrix.split == "inputs" else 1.0)
    outputs = matrix.outputs / (ways if matrix.split == "outputs" else 1.0)
    for n, k in ((float(adapter.rank), inputs), (outputs, float(adapter.rank))):
        for operator in _gemm(size, n, k, job, groups=groups):
            if operator.kind == GEMM:
                yield replace(operator, weight_gradient=False)
    yield from memory_bound(ADDED_BYTES * size * outputs * groups, backward=0.0)
    yield from memory_bound(ADDED_BYTES * size * inputs * groups, forward=0.0, backward=1.0)
    if adapter.dora:
        ones = np.ones_like(size)
        rows = inputs + outputs if framework_has(job.framework, "transformers") else outputs
        for operator in _gemm(rows * ones, inputs, float(adapter.rank), job, groups=groups):
            if operator.kind == GEMM and operator.direction == FORWARD:
                yield operator
        yield from memory_bound(LENGTH_BYTES * inputs * outputs * groups * ones, backward=0.0)
        yield from memory_bound(SCALED_BYTES * size * outputs * groups, backward=1.0)


def held_adapters(model: Model, layer: Layer, adapter: Adapter, shard: Shard) -> tuple[Floats, Floats]:
    """Return the weights of adapters that one GPU holds of a layer, and of its experts, [M] each. Of A and B
    tensor-parallel ranks split the one whose side of the frozen matrix they split, and each holds the other whole."""
    held = [np.zeros(len(shard.tp)), np.zeros(len(shard.tp))]
    for matrix in adapted(model, layer, adapter):
        ways = split_ways(matrix, shard)
        inputs = matrix.inputs / (ways if matrix.split == "inputs" else 1.0)
        outputs = matrix.outputs / (ways if matrix.split == "outputs" else 1.0)
        weights = _copies(matrix, shard) * (adapter.rank * (inputs + outputs) + adapter.dora * outputs)
        held[matrix.target == "experts"] = held[matrix.target == "experts"] + weights
    return held[0], held[1]


def repeats(job: Job) -> int:
    """Return the bits of the modules that selective recomputation repeats: core attention, unless told otherwise."""
    modules = job.options.recompute_modules
    return CORE if modules is None else sum(MODULE_BITS[module] for module in modules)


def core_attention(operators: OperatorTable) -> Bools:
    """Return which operators are core attention, [operators, 1]."""
    return np.asarray(operators.modules & CORE, dtype=bool)


def repeated_share(job: Job, operators: OperatorTable) -> Floats:
    """Return the part of each forward operator's time that selective recomputation repeats, [operators, 1]."""
    if per_operator(job):
        others = np.where(operators.kind == ATTENTION, 0.0, 1.0)
        return np.where(operators.kind == GEMM, 1.0 - KEPT_PRODUCTS, others)
    return np.where(operators.modules & repeats(job), operators.share, 0.0)


def per_operator(job: Job) -> bool:
    """Whether the framework repeats operators, not modules."""
    return framework_rows()[job.framework]["selective"] == "operators"


def freed_of_operators(model: Model, layer: Layer, shard: Shard, job: Job, kept: Floats, *, width: float) -> Floats:
    """Return the bytes of one layer that recomputation of operators frees, [M], of `kept` bytes without any;
    activations have `width` bytes."""
    attention, size = layer.attention, tokens(shard, job)
    products, scored = 0, 0
    if attention is not None:
        products = sum(attention.projected_widths) + model.hidden
        scored = attention.out_width
    if layer.cross is not None:
        products += layer.cross.query_width + model.hidden
        scored += layer.cross.out_width
    if layer.mixer is not None:
        products += sum(product.outputs for product in layer.mixer.work(model.hidden).products)
    products += sum(product.outputs for product in layer.shared_products(model.hidden))
    if layer.mlp is not None:
        products += (2 if layer.mlp.gated else 1) * layer.mlp.width + model.hidden
    if layer.moe is not None:
        active = layer.moe.top_k * layer.moe.expert_width + layer.moe.shared_width
        products += (2 if layer.moe.gated else 1) * active + model.hidden
    saved = width * size * (KEPT_PRODUCTS * products + scored) / shard.tp
    return np.maximum(kept - saved - width * norm_tokens(shard, job) * model.hidden, 0.0)
