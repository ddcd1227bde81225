"""What selective recomputation keeps and repeats: core attention in Megatron-LM, most cheap operators in torchtitan.

torchtitan's per-operator policy keeps the output of attention and of every other matrix product, and repeats all
else (pytorch/torchtitan: activation checkpointing, mode "selective", option "op").
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.operators import ATTENTION, GEMM, OperatorTable, Shard, norm_tokens, tokens
from shardwright.spec.catalog.frameworks import framework_rows
from shardwright.spec.job import Job
from shardwright.spec.model import Layer, Model

KEPT_PRODUCTS = 0.5  # documented


def repeated_share(job: Job, operators: OperatorTable) -> Floats:
    """Return the part of each forward operator's time that selective recomputation repeats, [operators, 1]."""
    if _per_operator(job):
        others = np.where(operators.kind == ATTENTION, 0.0, 1.0)
        return np.where(operators.kind == GEMM, 1.0 - KEPT_PRODUCTS, others)
    return np.where(operators.core, 1.0, 0.0)


def _per_operator(job: Job) -> bool:
    return framework_rows()[job.framework]["selective"] == "operators"


def freed_bytes(
    model: Model, layer: Layer, shard: Shard, job: Job, kept: Floats, scores: Floats, *, width: float
) -> Floats:
    """Return the bytes of one layer that selective recomputation frees, [M], of `kept` bytes without any, of which
    `scores` belong to core attention; activations have `width` bytes."""
    if not _per_operator(job):
        return scores
    attention, size = layer.attention, tokens(shard, job)
    products = attention.query_width + attention.key_width + attention.value_width + model.hidden
    if layer.mlp is not None:
        products += (2 if layer.mlp.gated else 1) * layer.mlp.width + model.hidden
    if layer.moe is not None:
        active = layer.moe.top_k * layer.moe.expert_width + layer.moe.shared_width
        products += (2 if layer.moe.gated else 1) * active + model.hidden
    saved = width * size * (KEPT_PRODUCTS * products + attention.out_width) / shard.tp
    return np.maximum(kept - saved - width * norm_tokens(shard, job) * model.hidden, 0.0)
