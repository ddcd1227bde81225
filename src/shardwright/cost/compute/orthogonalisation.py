"""What Muon computes: five steps of Newton-Schulz on the momentum of each matrix of the layers (arXiv 2502.16982)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from shardwright.records import record
from shardwright.spec.layer import Attention, Layer, Mlp
from shardwright.spec.model import Model

STEPS = 5  # documented


def orthogonalisation_flops(rows: int, columns: int) -> float:
    """Return the FLOPs of a matrix: in each step three products, those of its Gram matrix along the shorter side."""
    short, long = sorted((float(rows), float(columns)))
    return STEPS * (4.0 * short * short * long + 2.0 * short**3)


@record
class Work:
    """FLOPs for each weight of the matrices of a model's layers on average, of experts and of all others, and those of
    the matrix that has most."""

    dense: float
    expert: float
    largest: float


def work_of(model: Model) -> Work:
    """Return the work of orthogonalising all matrices of the layers of a model."""
    counted = list(zip(model.kinds, np.bincount(model.kind_of_layer, minlength=len(model.kinds)).tolist(), strict=True))
    dense = [(shape, count) for layer, count in counted for shape in _dense(model, layer)]
    if model.shared_layer is not None:
        block = replace(model.shared_layer, mixer=None, shared=None)
        dense += [(shape, model.shared_blocks or 1) for shape in _dense(model, block)]
    expert = [
        (shape, count * layer.moe.experts)
        for layer, count in counted
        if layer.moe
        for shape in _mlp(layer.moe.latent or model.hidden, Mlp(width=layer.moe.expert_width, gated=layer.moe.gated))
    ]
    return Work(
        dense=_each(dense),
        expert=_each(expert),
        largest=max(orthogonalisation_flops(*shape) for shape, _ in (*dense, *expert)),
    )


def _each(counted: Sequence[tuple[tuple[int, int], int]]) -> float:
    """Return the FLOPs for each weight of so many matrices of a shape; 0 where there are none."""
    weights = sum(count * rows * columns for (rows, columns), count in counted)
    return sum(count * orthogonalisation_flops(*shape) for shape, count in counted) / max(weights, 1)


def _dense(model: Model, layer: Layer) -> Iterator[tuple[int, int]]:
    yield from ((product.outputs, product.inputs) for product in layer.shared_products(model.hidden))
    if layer.attention is not None and layer.shared is None:
        yield from _attention(model.hidden, layer.attention)
    if layer.cross is not None:
        yield from _attention(model.hidden, layer.cross)
    if layer.mixer is not None:
        yield from ((product.outputs, product.inputs) for product in layer.mixer.work(model.hidden).products)
    if layer.mlp is not None and layer.shared is None:
        yield from _mlp(model.hidden, layer.mlp)
    if layer.moe is not None:
        yield layer.moe.experts, model.hidden
        if layer.moe.shared_width:
            yield from _mlp(model.hidden, Mlp(width=layer.moe.shared_width, gated=layer.moe.gated))


def _attention(hidden: int, attention: Attention) -> Iterator[tuple[int, int]]:
    yield hidden, attention.out_width
    if attention.gate is not None:
        yield attention.gate_width, hidden
    mla = attention.latent
    if mla is None:
        yield from ((width, attention.inputs(hidden)) for width in attention.projected_widths)
        return
    if mla.query_rank is None:
        yield attention.query_width, hidden
    else:
        yield mla.query_rank, hidden
        yield attention.query_width, mla.query_rank
    yield mla.kv_rank + mla.rope_head_dim, hidden
    yield attention.heads * (mla.nope_head_dim + attention.value_head_dim), mla.kv_rank


def _mlp(hidden: int, mlp: Mlp) -> Iterator[tuple[int, int]]:
    for _ in range(3 if mlp.gated else 2):
        yield mlp.width, hidden
