"""What selective recomputation keeps and repeats: modules in Megatron-LM, most cheap operators in torchtitan.

torchtitan's per-operator policy keeps the output of attention and of every other matrix product, and repeats all
else (pytorch/torchtitan: activation checkpointing, mode "selective", option "op").
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Bools, Floats
from shardwright.cost.compute.operator_table import ATTENTION, GEMM, OperatorTable
from shardwright.cost.compute.operators import CORE, MODULE_BITS, Shard, norm_tokens, tokens
from shardwright.spec.catalog.frameworks import framework_rows
from shardwright.spec.job import Job
from shardwright.spec.model import Layer, Model

# torchtitan keeps every second product (`op` of distributed/activation_checkpoint.py, v0.3).
KEPT_PRODUCTS = 0.5  # documented


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
        products = attention.query_width + attention.key_width + attention.value_width + model.hidden
        scored = attention.out_width
    if layer.mixer is not None:
        products += sum(product.outputs for product in layer.mixer.work(model.hidden).products)
    if layer.mlp is not None:
        products += (2 if layer.mlp.gated else 1) * layer.mlp.width + model.hidden
    if layer.moe is not None:
        active = layer.moe.top_k * layer.moe.expert_width + layer.moe.shared_width
        products += (2 if layer.moe.gated else 1) * active + model.hidden
    saved = width * size * (KEPT_PRODUCTS * products + scored) / shard.tp
    return np.maximum(kept - saved - width * norm_tokens(shard, job) * model.hidden, 0.0)
