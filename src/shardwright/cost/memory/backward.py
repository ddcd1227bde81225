"""Bytes that are there while a layer runs backward, beyond what it keeps for that: gradients of activations, copies,
and what trainers have for a moment.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import or_

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.operators import (
    ACTIVATION,
    Shard,
    norm_tokens,
    repeats,
    routed_tokens,
    split_ways,
    tokens,
)
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.memory.kept import (
    expert_input,
    inner_bytes,
    latent_width,
    mlp_bytes,
    moe_bytes,
    needed,
    norm_copies,
)
from shardwright.cost.memory.sizes import SINGLE
from shardwright.spec.adapter import ATTENTION, NF4_WIDENED, Matrix, adapted, matrices
from shardwright.spec.catalog.frameworks import OWN, framework_has
from shardwright.spec.job import Job
from shardwright.spec.layer import Attention, Layer
from shardwright.spec.model import Model

NORM_SINGLES, NORM_SAVED = 4.0, 5.0  # documented: `norm_backward_bytes`


def norm_backward_bytes(model: Model, job: Job) -> float:
    """Return the bytes of an element that the backward pass of a layer's first norm has at a time where it is unfused,
    beside the gradients of all the layer's weights: four tensors in fp32 and five as activations are, in PyTorch 2.13
    of transformers' `LlamaRMSNorm`."""
    return (NORM_SINGLES * SINGLE + NORM_SAVED * widths_of(job).saved) * (norm_copies(model, job) > 0.0)


def halfway_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what lives beside what a layer keeps while gradients of weights of its feed-forward block are there, [M]:
    that of the second product's, with the gradients of activations before it; or, in the backward pass of the norm
    before the block, that pass's and the gradients of all the block's weights, in place of what the block and the norm
    kept."""
    if layer.mlp is None or not job.trains("language"):
        return np.zeros(len(shard.tp))
    saved, outer = widths_of(job).saved, norm_tokens(shard, job) * model.hidden
    matrix = saved * model.hidden * layer.mlp.width / shard.tp
    second, unfused = gradient_bytes(model, layer, shard, job) + matrix, norm_backward_bytes(model, job)
    if layer.attention is None or model.parallel_block or not unfused:
        return second
    norm = (unfused - saved - norm_copies(model, job)) * outer
    whole = (3.0 if layer.mlp.gated else 2.0) * matrix + norm - mlp_bytes(model, layer.mlp, shard, job)
    return np.maximum(second, whole)


def beside_again(layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what of a module that runs again is there beside its gradients, [M], where else it would be gone by then:
    what experts' non-linearity gives, until that has run backward (Megatron-LM core_v0.19.2, tensor_parallel/random.py:
    `CheckpointWithoutOutput`)."""
    moe = layer.moe
    if moe is None or not repeats(job) & ACTIVATION or not memory_facts(job.framework).megatron_core:
        return np.zeros(len(shard.tp))
    return np.asarray(expert_input(job) * routed_tokens(moe, shard, job) * moe.expert_width / shard.etp)


def gradient_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return the gradients that live together in the backward pass of the feed-forward block: of its inner
    activations, before and after the non-linearity, and of its input. A block without one has those of what mixes
    tokens: of the input projection's result and of what enters the output projection. The non-linearity runs backward
    when what entered the second product is gone, in one kernel, and where operators run one by one. In `train` the
    gradient of a block's input comes after those inside where there are adapters, of which then there is that of its
    output."""
    facts = memory_facts(job.framework)
    size, gone = tokens(shard, job), float(facts.megatron_core)
    released = gone or float(facts.inner_copies > 0.0 and needed(job, "down_proj"))
    adapters_of_train = job.framework == OWN and job.adapter is not None
    width, outer = np.zeros(len(shard.tp)), norm_tokens(shard, job) if gone or adapters_of_train else size
    if layer.mlp is None and layer.moe is None:
        width = size * _widest_projection(model, layer) / shard.tp
    if layer.mlp is not None:
        # what entered the second product gives way to these where it is kept
        beyond = float(adapters_of_train and layer.mlp.gated and not needed(job, "down_proj"))
        width = size * ((3.0 if layer.mlp.gated else 2.0) - released + beyond) * layer.mlp.width / shard.tp
    if layer.moe is not None:
        routed, ways = routed_tokens(layer.moe, shard, job), (3.0 if layer.moe.gated else 2.0) - gone
        width = np.maximum(width, routed * ways * layer.moe.expert_width / shard.etp)
    adapter = job.adapter if adapters_of_train and layer.mlp is not None else None
    # what gave the block's output is gone by then
    given = adapter is not None and adapter.dora and "down_proj" in adapter.targets
    return widths_of(job).saved * (width + outer * model.hidden * (not given))


def engine_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
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
        after = mlp_bytes(model, layer.mlp, shard, job)
    if layer.moe is not None:
        after = moe_bytes(model, layer.moe, shard, job)
    if attention is not None:
        kept = attention.out_width + _attention_inputs(attention)
        of_attention = size * (SINGLE * attention.query_width + widths.saved * kept) / shard.tp
        total = np.maximum(total, np.where(shard.flash, of_attention - after, 0.0))
    return np.asarray(total)


def _attention_inputs(attention: Attention) -> int:
    """Return the elements of a token that queries, keys and values have as attention takes them."""
    if attention.latent is not None:
        return latent_width(attention)
    return attention.query_width + attention.key_width + attention.value_width


def dispatched_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what is there beyond what is kept when experts' results go back to their tokens, [M]. Beside results of
    shared experts, of an all-to-all these are tokens as they were permuted and as they came, the experts' results, and
    these sorted back or received; with one expert what came is kept. Of an all-gather they are the results, and these
    added up for the tokens of all ranks, in the type of the router's weights, too
    (Megatron-LM core_v0.19.2: transformer/moe/{moe_layer,token_dispatcher}.py)."""
    moe, total = layer.moe, np.zeros(len(shard.tp))
    if moe is None or not memory_facts(job.framework).megatron_core:
        return total
    saved, outer, outside = widths_of(job).saved, norm_tokens(shard, job), moe.latent or model.hidden
    routed, alone = routed_tokens(moe, shard, job), shard.ep >= moe.experts
    if job.options.dispatcher == "allgather":
        single = SINGLE * bool(moe.router_bias and saved < SINGLE)
        gathered = outer * shard.ep * np.where(shard.sequence_parallel, shard.etp, shard.etp / shard.tp)
        sent = saved * routed + (saved + single) * gathered
    else:
        before = 1.0 + (shard.ep > 1) * ~alone
        sent = saved * routed * (before / shard.etp + 1.0 + (~alone | (shard.ep > 1)))
    return np.asarray(outside * sent + saved * outer * model.hidden * bool(moe.shared_width))


def unmerged_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
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
        inside = inner_bytes(job, widths_of(job).saved_input, "down_proj", gated=layer.mlp.gated) * width
        together = np.where(shard.tp > 1, 1.0 + layer.mlp.gated, 1.0)
        first = copies * together - (copies - SINGLE) * (together - 1.0)
        second = (copies * width + saved * size) * model.hidden
        total = np.maximum(second, first * model.hidden * width + (saved * model.hidden - inside) * size)
    if layer.moe is not None:
        moe, routed = layer.moe, routed_tokens(layer.moe, shard, job)
        outside, width = moe.latent or model.hidden, moe.expert_width / shard.etp
        matrices = moe.experts / shard.ep * outside * width
        inside = inner_bytes(job, expert_input(job), "experts", gated=moe.gated) * width * routed
        cast = SINGLE if copies > SINGLE else 0.0
        whole = (copies - cast) * (2.0 + moe.gated) + cast
        total = np.maximum(total, np.maximum(copies * matrices + saved * routed * outside, whole * matrices - inside))
    return np.asarray(total)


def grouped_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what is there while experts' products run backward together, [M], beyond what is kept: a tensor for the
    gradient of each weight (`MemoryFacts.megatron_core`; Transformer Engine 2.8, module/grouped_linear.py), beside
    the gradients of what comes and goes; when the first products do, the block's inside is gone."""
    moe, total = layer.moe, np.zeros(len(shard.tp))
    if moe is None or not memory_facts(job.framework).megatron_core or not job.trains("language"):
        return total
    saved, outside, width = widths_of(job).saved, moe.latent or model.hidden, moe.expert_width / shard.etp
    routed, matrices = routed_tokens(moe, shard, job), moe.experts / shard.ep * outside * width
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


def magnitude_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what the lengths of rows that DoRA trains need for their gradients: in PEFT of each matrix the frozen
    product and the adapter's (peft/tuners/lora/dora.py 0.21: `DoraLinearLayer.forward`), in `train` of those whose
    result nothing keeps that (runtime/model/products.py: `_Stretched`)."""
    total, saved = np.zeros(len(shard.tp)), widths_of(job).saved
    for matrix in _dora_of_peft(model, layer, job):
        cut = shard.tp if matrix.split == "outputs" else 1
        total = total + 2.0 * saved * tokens(shard, job) * matrix.copies * matrix.outputs / cut
    if job.framework == OWN and job.adapter is not None and job.adapter.dora:
        rotated = layer.attention is not None and model.position == "rope" and not layer.attention.qk_norm
        lost = {"o_proj", "down_proj"} | ({"q_proj", "k_proj"} if rotated else set())
        for matrix in adapted(model, layer, job.adapter):
            here = tokens(shard, job) / shard.tp if matrix.split == "outputs" else norm_tokens(shard, job)
            total = total + saved * (matrix.target in lost) * here * matrix.outputs
    return total


def lengths_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what `train` has at a time to find the lengths of a matrix' rows in the forward pass, of the largest: BA
    and that scaled, then their sum with the frozen weights, beside the product that they are for; what comes after
    attention is not kept by then (runtime/model/products.py: `_sum`)."""
    total = np.zeros(len(shard.tp))
    if job.framework != OWN or job.adapter is None or not job.adapter.dora:
        return total
    after = total if layer.mlp is None else mlp_bytes(model, layer.mlp, shard, job)
    for matrix in adapted(model, layer, job.adapter):
        cut, here = split_ways(matrix, shard), norm_tokens(shard, job)
        product = tokens(shard, job) / cut if matrix.split == "outputs" else here
        both = widths_of(job).saved * (2.0 * matrix.inputs / cut + product) * matrix.outputs
        total = np.maximum(total, both - after * (matrix.target in ATTENTION))
    return np.maximum(total - unpacking_bytes(job), 0.0)  # which is over by then


def norm_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return what PEFT's DoRA has at a time to find the lengths of a matrix' rows, of the largest: an identity of its
    inputs, the adapter's product with it, that scaled, and the sum with the frozen weights."""
    sizes = [
        matrix.inputs * (matrix.inputs + 3.0 * matrix.outputs) / split_ways(matrix, shard)
        for matrix in _dora_of_peft(model, layer, job)
    ]
    return np.asarray(widths_of(job).saved * np.max(np.stack([np.zeros(len(shard.tp)), *sizes]), axis=0))


def _dora_of_peft(model: Model, layer: Layer, job: Job) -> list[Matrix]:
    of_peft = framework_has(job.framework, "transformers") and job.adapter is not None and job.adapter.dora
    return adapted(model, layer, job.adapter) if of_peft and job.adapter is not None else []


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


def dequantised_bytes(model: Model, layer: Layer, shard: Shard, job: Job) -> Floats:
    """Return the largest matrix of a layer in 16 bits where frozen weights are quantised: matrices are made wider one
    at a time (bitsandbytes, autograd/_functions.py: MatMul4Bit, MatMul8bitLt). `train` makes
    some rows wide at a time, through their codes as integers, two in each, and numbers in fp32
    (runtime/model/nf4.py)."""
    if job.adapter is None or not job.adapter.quantised:
        return np.zeros(len(shard.tp))
    sizes = [
        matrix.inputs * matrix.outputs / split_ways(matrix, shard)
        for matrix in matrices(model, layer)
        if matrix.target != "experts" or not job.experts_unquantised
    ]
    largest = np.max(np.stack([np.zeros(len(shard.tp)), *sizes]), axis=0)
    return np.asarray(2.0 * largest + np.minimum((2.0 + SINGLE) * largest, unpacking_bytes(job)))


def beside_gradients_bytes(model: Model, layer: Layer, shard: Shard, job: Job, gradients: Floats) -> Floats:
    """Return what of the largest matrix is there in 16 bits beside the `gradients` that live together, [M]. Where
    operators run one by one it is there while a product runs backward, with the gradients of what it gives and takes
    alone."""
    wide = dequantised_bytes(model, layer, shard, job)
    if layer.mlp is None or not memory_facts(job.framework).inner_copies:
        return wide
    sides = widths_of(job).saved * tokens(shard, job) * (layer.mlp.width / shard.tp + model.hidden)
    return np.maximum(wide + sides - gradients, 0.0)


def unpacking_bytes(job: Job) -> float:
    """Return what `train` has at a time to make rows of a large matrix wide that is kept in four bits."""
    return job.nf4_blocks * (2.0 + SINGLE) * NF4_WIDENED
