"""The parameters of every unit of a model: name, full shape, how tensor parallelism cuts them, how they start.

The table is pure data and knows no plan but for the padded vocabulary. A parameter is cut along one dimension into at
most `pieces` equal pieces; where a unit has more shards than a parameter has pieces (key-value heads), neighbouring
shards share a piece, and where it is not cut at all, every shard has the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from shardwright.spec.model import Attention, Layer, Mlp, Model, Moe

Start = Literal["normal", "ones", "zeros"]
Summed = Literal["", "sequence", "tensor", "copies"]
INITIAL_DEVIATION = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParameter:
    """One parameter of the whole model.

    `dim` is the dimension that is cut, None if none is; `pieces` into how many at most. `start` and `deviation` say how
    it is initialised. `summed` says over which ranks of a stage its gradient is a sum: none; those of the
    tensor-parallel group under sequence parallelism ("sequence") or always ("tensor"); those with the same
    key-value heads ("copies"). `expert` is the number of the expert that it belongs to.
    """

    name: str
    shape: tuple[int, ...]
    dim: int | None = None
    pieces: int = 1
    start: Start = "normal"
    deviation: float = INITIAL_DEVIATION
    summed: Summed = ""
    expert: int | None = None

    @property
    def decayed(self) -> bool:
        """Whether weight decay applies: to matrices, not to norms and biases."""
        return len(self.shape) > 1

    @property
    def hidden(self) -> bool:
        """Whether it is a matrix of a layer, for which some optimizers have another rule than for embeddings, the
        output projection, norms and biases."""
        return self.decayed and self.name.startswith("layers.")

    @property
    def padded(self) -> bool:
        """Whether its rows are those of the vocabulary, of which the last may be padding."""
        return self.name in ("embedding.tokens.weight", "head.weight")

    def piece(self, shard: int, shards: int) -> int:
        """Return the piece that a shard holds."""
        return shard * min(self.pieces, shards) // shards

    def bounds(self, first: int, last: int, shards: int) -> tuple[int, int]:
        """Return [start, stop) along `dim` of the shards from `first` to `last` inclusive."""
        assert self.dim is not None, "a parameter that is not cut has no bounds"
        size = self.shape[self.dim] // min(self.pieces, shards)
        return self.piece(first, shards) * size, (self.piece(last, shards) + 1) * size

    def local_shape(self, first: int, last: int, shards: int) -> tuple[int, ...]:
        """Return the shape of what a rank with these shards holds."""
        if self.dim is None:
            return self.shape
        start, stop = self.bounds(first, last, shards)
        return (*self.shape[: self.dim], stop - start, *self.shape[self.dim + 1 :])


def unit_parameters(model: Model, unit: int, vocabulary: int) -> tuple[ModelParameter, ...]:
    """Return the parameters of a unit. `vocabulary` is the padded number of rows of embedding and output projection."""
    if unit == 0:
        return tuple(_embedding(model, vocabulary))
    if unit == len(model.layers) + 1:
        return tuple(_head(model, vocabulary))
    return tuple(_layer(model, model.layers[unit - 1], f"layers.{unit - 1}"))


def _embedding(model: Model, vocabulary: int) -> Iterator[ModelParameter]:
    yield ModelParameter(name="embedding.tokens.weight", shape=(vocabulary, model.hidden), dim=0, pieces=vocabulary)
    if model.learned_positions:
        shape = (model.learned_positions, model.hidden)
        yield ModelParameter(name="embedding.positions.weight", shape=shape, summed="sequence")
    if model.embedding_norm:
        yield from _norm(model, "embedding.norm")


def _head(model: Model, vocabulary: int) -> Iterator[ModelParameter]:
    if model.final_norm:
        yield from _norm(model, "head.norm")
    if not model.tied_embeddings:
        yield ModelParameter(name="head.weight", shape=(vocabulary, model.hidden), dim=0, pieces=vocabulary)


def _layer(model: Model, layer: Layer, name: str) -> Iterator[ModelParameter]:
    yield from _norm(model, f"{name}.attention_norm")
    yield from _attention(model, layer.attention, f"{name}.attention")
    yield from _norm(model, f"{name}.mlp_norm")
    if layer.mlp is not None:
        yield from _mlp(model, layer.mlp, f"{name}.mlp")
    if layer.moe is not None:
        yield from _moe(model, layer.moe, f"{name}.moe")


def _norm(model: Model, name: str) -> Iterator[ModelParameter]:
    yield ModelParameter(name=f"{name}.weight", shape=(model.hidden,), start="ones", summed="sequence")
    if model.norm == "layernorm":
        yield ModelParameter(name=f"{name}.bias", shape=(model.hidden,), start="zeros", summed="sequence")


def _attention(model: Model, attention: Attention, name: str) -> Iterator[ModelParameter]:
    query = (attention.query_width, attention.heads, "")
    key = (attention.key_width, attention.kv_heads, "copies")
    value = (attention.value_width, attention.kv_heads, "copies")
    for part, (width, pieces, summed) in {"query": query, "key": key, "value": value}.items():
        where = f"{name}.{part}"
        how: Summed = "copies" if summed else ""
        yield ModelParameter(name=f"{where}.weight", shape=(width, model.hidden), dim=0, pieces=pieces, summed=how)
        if attention.qkv_bias:
            yield ModelParameter(name=f"{where}.bias", shape=(width,), dim=0, pieces=pieces, start="zeros", summed=how)
    if attention.qk_norm:
        for part in ("query_norm", "key_norm"):
            yield ModelParameter(
                name=f"{name}.{part}.weight", shape=(attention.head_dim,), start="ones", summed="tensor"
            )
    yield ModelParameter(
        name=f"{name}.out.weight", shape=(model.hidden, attention.out_width), dim=1, pieces=attention.heads,
        deviation=_residual(model),
    )  # fmt: skip
    if attention.out_bias:
        yield ModelParameter(name=f"{name}.out.bias", shape=(model.hidden,), start="zeros", summed="sequence")


def _mlp(model: Model, mlp: Mlp, name: str) -> Iterator[ModelParameter]:
    for part in ("gate", "up") if mlp.gated else ("up",):
        yield ModelParameter(name=f"{name}.{part}.weight", shape=(mlp.width, model.hidden), dim=0, pieces=mlp.width)
        if mlp.bias:
            yield ModelParameter(name=f"{name}.{part}.bias", shape=(mlp.width,), dim=0, pieces=mlp.width, start="zeros")
    yield ModelParameter(
        name=f"{name}.down.weight", shape=(model.hidden, mlp.width), dim=1, pieces=mlp.width, deviation=_residual(model)
    )
    if mlp.bias:
        yield ModelParameter(name=f"{name}.down.bias", shape=(model.hidden,), start="zeros", summed="sequence")


def _moe(model: Model, moe: Moe, name: str) -> Iterator[ModelParameter]:
    """Router and experts, and what every token visits. Each rank of a stage sees a part of the tokens, or all tokens
    and a part of every expert's width; so the router's gradient is a sum over these parts."""
    yield ModelParameter(name=f"{name}.router.weight", shape=(moe.experts, model.hidden), summed="tensor")
    for expert in range(moe.experts):
        for parameter in _mlp(model, Mlp(width=moe.expert_width, gated=moe.gated), f"{name}.experts.{expert}"):
            yield replace(parameter, expert=expert)
    if moe.shared_width:
        yield from _mlp(model, Mlp(width=moe.shared_width, gated=moe.gated), f"{name}.shared")
    if moe.shared_gate:
        yield ModelParameter(name=f"{name}.shared_weight.weight", shape=(1, model.hidden), summed="tensor")


def _residual(model: Model) -> float:
    """Deviation of projections into the residual stream, smaller the more there are (GPT-2 §2.3)."""
    return float(INITIAL_DEVIATION / (2 * max(len(model.layers), 1)) ** 0.5)
