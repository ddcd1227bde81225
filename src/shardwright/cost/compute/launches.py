"""What the host launches of a layer: its calls forward, by what of them CUDA graphs hold.

A call is a kernel or a collective with what Python does around it. Calls are counted in Megatron-LM core_v0.19.2 with
Transformer Engine (megatron/core/transformer: attention.py, multi_latent_attention.py, mlp.py, moe; megatron/core/ssm:
mamba_mixer.py); other frameworks make about as many of what is not fused, each in a time of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.operators import Shard, splits_softmax
from shardwright.spec.catalog.frameworks import framework_has
from shardwright.spec.job import Job
from shardwright.spec.layer import Layer
from shardwright.spec.model import Model

# Norm, projection, its split, the rotation of queries and of keys, core attention, projection, sum with the residual.
ATTENTION_CALLS = 8.0  # documented
ROTATIONS = 2.0  # of these, which models with other positions do without; documented
# More, where core attention is not fused: two products, softmax, dropout, a copy of what comes out (Megatron-LM v2.5:
# megatron/model/transformer.py, ParallelAttention.forward).
UNFUSED_CALLS = 4.0  # documented
# More, where softmax does not convert, scale, mask and convert back in one kernel (`operators.splits_softmax`).
SPLIT_CALLS = 4.0  # documented
LATENT_CALLS = 6.0  # more, where keys and values are latent: three products, two norms, a copy; documented
# Norm, convolution, running sums and states of the scan, gated norm, sum; products and those of the scan come to it.
MIXER_CALLS = 6.0  # documented
MLP_CALLS = 5.0  # norm, product, activation, product, sum; documented
SHARED_CALLS = 4.0  # of shared experts, which have no norm; documented
ROUTER_CALLS = 12.0  # norm, product, scores, choice, loss, counts and maps of tokens; documented
EXPERT_CALLS = 10.0  # permuting, sending, receiving and un-permuting tokens, the activation, weighting; documented
# A grouped product goes from C++ expert by expert, beside tensors that are made and split for each (Transformer Engine:
# module/grouped_linear.py; its issue 1499); of a call from Python.
EXPERT_PRODUCT_CALLS = 0.25  # chosen, 0.1 to 1
# Of an expert that runs by itself: its rows are looked for, read by the host, gathered, weighed and added, two or three
# products and what is between them (transformers 4.57: Qwen3MoeSparseMoeBlock.forward, as PyTorch 2.13 dispatches it).
LOOP_CALLS = 12.0  # documented
# Of two products that tensor parallelism cuts by columns and by rows: a sum, or under sequence parallelism a gather and
# a scattered sum (megatron/core/tensor_parallel/mappings.py).
COLLECTIVE_CALLS, SEQUENCE_CALLS = 1.0, 2.0  # documented
# Tensor parallelism of plain PyTorch, by DTensor and not compiled: some 46 operators of a layer are dispatched in
# Python, in 90 µs each (pytorch/pytorch pull request 159699), beside 17 calls of 50 µs.
DTENSOR_CALLS = 5.0  # chosen, 3 to 10
END_CALLS = 8.0  # of the embedding, and of head and loss; chosen, 4 to 16
MIXING, ROUTING, EXPERTS, DENSE, ENDS = "mixing", "routing", "experts", "dense", "ends"
# Megatron-LM core_v0.19.2, transformer_config.py: cuda_graph_scope.
HELD: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "moe": (ROUTING,),
    "attention": (MIXING, ROUTING),
    "layers": (MIXING, ROUTING, EXPERTS, DENSE),
    "full": (MIXING, ROUTING, EXPERTS, DENSE, ENDS),
}


def launches(model: Model, layer: Layer | None, shard: Shard, job: Job) -> Floats:
    """Return the calls of the host in a forward pass of a layer (of embedding or head where it is None), [M]."""
    held = HELD[job.options.cuda_graph or "none"]
    calls = {ENDS: END_CALLS} if layer is None else _calls(model, layer, shard, job)
    by_dtensor = framework_has(job.framework, "eager_tp")
    slower = np.where(shard.tp > 1, DTENSOR_CALLS if by_dtensor else 1.0, 1.0)
    return slower * sum(count for part, count in calls.items() if part not in held)


def _calls(model: Model, layer: Layer, shard: Shard, job: Job) -> dict[str, Floats | float]:
    pair = np.where(shard.tp > 1, np.where(shard.sequence_parallel, SEQUENCE_CALLS, COLLECTIVE_CALLS), 0.0)
    attentions = [kind for kind in (layer.attention, layer.cross) if kind is not None]
    unfused = np.where(shard.flash, 0.0, UNFUSED_CALLS)
    common = ATTENTION_CALLS - ROTATIONS * (model.position != "rope") + unfused + pair
    mixing = 0.0 * pair
    for kind in attentions:
        split = SPLIT_CALLS * splits_softmax(kind, shard, job, float(job.seq_len))
        mixing = mixing + common + split + LATENT_CALLS * bool(kind.latent)
    if layer.mixer is not None:
        work = layer.mixer.work(model.hidden)
        mixing = mixing + MIXER_CALLS + len(work.products) + len(work.scan) + pair
    mixing = mixing + 2.0 * len(layer.shared_products(model.hidden))
    calls: dict[str, Floats | float] = {MIXING: mixing}
    if layer.mlp is not None:
        calls[DENSE] = MLP_CALLS + pair
    if layer.moe is not None:
        experts = EXPERT_CALLS + EXPERT_PRODUCT_CALLS * 2.0 * layer.moe.experts / shard.ep
        if job.options.expert_products == "loop":
            experts = LOOP_CALLS * layer.moe.experts / shard.ep
        shared = (SHARED_CALLS + pair) * bool(layer.moe.shared_width)
        calls |= {ROUTING: ROUTER_CALLS, EXPERTS: experts + shared}
    return calls
