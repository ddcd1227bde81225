"""The forward pass through a run of units: what one virtual stage computes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Protocol

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from shardwright.plans.plan import Recompute
from shardwright.records import record
from shardwright.runtime.model.attention import Documents, Rotations, rotations
from shardwright.runtime.model.blocks import ACTIVATIONS, layer_forward, norm
from shardwright.runtime.model.context import WHOLE, ContextGroup
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.gated import Weights, inside
from shardwright.runtime.model.loss import looked_up, summed_loss
from shardwright.runtime.model.mixers import decays_of
from shardwright.runtime.model.parallel import ALONE, ExpertGroup, TensorGroup, leave, own_positions
from shardwright.runtime.model.products import PLAIN, Products, enter_linear
from shardwright.spec.mixers import Lightning
from shardwright.spec.model import Model

BLOCK = re.compile(r"(layers\.\d+|[a-z]+)\.(.*)")
LayerOf = Callable[[int, torch.Tensor], torch.Tensor]
# Is shown the output of every unit, and first the input as that of the unit before (-1: tokens), and returns it.
Observer = Callable[[int, torch.Tensor], torch.Tensor]


class Way(Protocol):
    """Is told when a pass reaches a unit, that of recomputation too, and shown the output with which it leaves it."""

    def reached(self, unit: int) -> None: ...

    def leaves(self, unit: int, x: torch.Tensor) -> None: ...


@record(slots=False)
class Chunk:
    """A run of units with this rank's parts of their parameters, by full name. `positions` are those of this rank's
    part of a sequence, `table` has their rotation. `way` brings the weights of each unit, where they are not there.
    `products` multiplies by the matrices of layers.
    `layer` computes a layer: `layer_forward`, or what `blocks.compiled` made of it. `end` is the token that ends a
    document, where attention stays within these."""

    units: tuple[int, ...]
    weights: Mapping[str, torch.Tensor]
    model: Model
    details: Details
    tensor: TensorGroup
    recompute: Recompute
    positions: torch.Tensor
    table: Rotations
    experts: ExpertGroup = ALONE
    context: ContextGroup = WHOLE
    products: Products = PLAIN
    way: Way | None = None
    layer: Callable[..., torch.Tensor] = layer_forward
    end: int | None = None

    @property
    def head(self) -> bool:
        """Whether it ends in the loss."""
        return len(self.model.layers) + 1 in self.units

    @cached_property
    def blocks(self) -> Mapping[str, Weights]:
        """The parameters of each block ("embedding", "layers.0", …, "head") under their names within it."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for name, value in self.weights.items():
            match = BLOCK.fullmatch(name)
            assert match is not None, "parameters are named block by block"
            found.setdefault(match[1], {})[match[2]] = value
        return found


def table_of(
    model: Model,
    details: Details,
    positions: torch.Tensor,
    dtype: torch.dtype = torch.float32,
    length: int | None = None,
) -> Rotations:
    """Return the rotation of positions for heads of a type, in sequences of `length` tokens (None: `positions` are all
    of them)."""
    return rotations(model, details.rotary, positions, length or len(positions), dtype)


def forward(
    chunk: Chunk,
    x: torch.Tensor,
    targets: torch.Tensor | None = None,
    observe: Observer | None = None,
    documents: Documents | None = None,
) -> torch.Tensor:
    """Return the activation after the chunk, or the summed loss over `targets` [micro_batch, sequence] at the head.

    `x` is tokens [micro_batch, sequence] for a chunk with the embedding, else an activation of this rank's positions.
    """
    layers = [unit for unit in chunk.units if 0 < unit <= len(chunk.model.layers)]
    see = observe or (lambda _, value: value)
    if chunk.units:
        x = see(chunk.units[0] - 1, x)
    if 0 in chunk.units:
        x = see(0, _passed(chunk, 0, partial(embed, chunk, x)))
    layer = partial(_layer, chunk, documents=documents, embedded=x if chunk.model.sharing else None)
    for group, saved in _groups(layers, chunk.recompute):
        x = (_recomputed if saved else _run)(chunk, group, x, see, layer)
    if not chunk.head:
        return x
    assert targets is not None, "the head needs targets"
    head = len(chunk.model.layers) + 1
    return see(head, _passed(chunk, head, partial(loss_of, chunk, x, targets)))


def embed(chunk: Chunk, tokens: torch.Tensor) -> torch.Tensor:
    """Return the embedded tokens at this rank's positions."""
    weights, tensor = chunk.blocks["embedding"], chunk.tensor
    table = weights["tokens.weight"]
    if tensor.size == 1:
        x = looked_up(tokens, table)
    else:
        here = tokens - tensor.rank * table.shape[0]
        elsewhere = (here < 0) | (here >= table.shape[0])
        found = looked_up(here.masked_fill(elsewhere, 0), table)
        x = leave(found.masked_fill(elsewhere[..., None], 0.0), tensor)
    x = _times(x, chunk.model.computed.embedding_scale)
    if "positions.weight" in weights:
        start, stop = own_positions(tokens.shape[1], tensor)
        offset = weights["positions.weight"].shape[0] - chunk.model.max_position
        x = x + functional.embedding(chunk.positions[start:stop] + offset, weights["positions.weight"])
    if "types.weight" in weights:  # every token is of the first type
        x = x + weights["types.weight"][0]
    return norm(x, inside(weights, "norm"), chunk.model, chunk.details) if chunk.model.embedding_norm else x


def _times(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Return `x` times a number that is rounded to its precision, as transformers does (5.23, Gemma3TextModel)."""
    return x if scale == 1.0 else x * float(torch.tensor(scale).to(x.dtype))


def logits_of(chunk: Chunk, x: torch.Tensor) -> torch.Tensor:
    """Return the logits of this rank's rows of the padded vocabulary at all positions."""
    bias, cap = chunk.weights.get("head.bias"), chunk.model.computed.logit_cap
    (logits,) = enter_linear(_final(chunk, x), [(_projection(chunk), bias)], chunk.tensor)
    return logits if cap is None else cap * torch.tanh(logits / cap)


def loss_of(chunk: Chunk, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return summed_loss(
        _final(chunk, x), _projection(chunk), targets, chunk.model.vocab, chunk.tensor,
        bias=chunk.weights.get("head.bias"), cap=chunk.model.computed.logit_cap,
        partly=not chunk.model.causal,
    )  # fmt: skip


def _final(chunk: Chunk, x: torch.Tensor) -> torch.Tensor:
    """Return what the output projection takes in."""
    model, weights = chunk.model, chunk.blocks.get("head", {})
    if model.computed.head_transform:
        x = functional.linear(x, weights["transform.weight"], weights["transform.bias"])
        x = ACTIVATIONS[model.activation](x)
    if model.final_norm or model.computed.head_transform:
        x = norm(x, inside(weights, "norm"), model, chunk.details)
    scale = model.computed.logit_scale
    return x if scale == 1.0 else x * scale


def _projection(chunk: Chunk) -> torch.Tensor:
    return chunk.weights["embedding.tokens.weight" if chunk.model.tied_embeddings else "head.weight"]


def unit_forward(
    chunk: Chunk,
    unit: int,
    x: torch.Tensor,
    documents: Documents | None = None,
    embedded: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what one unit but the head makes of `x`, tokens for the embedding; its weights must be there. `embedded`
    is what the embedding made, where layers share blocks."""
    return embed(chunk, x) if unit == 0 else _layer(chunk, unit, x, documents=documents, embedded=embedded)


def _groups(layers: Sequence[int], recompute: Recompute) -> list[tuple[Sequence[int], bool]]:
    """Return runs of layers and whether only the input of each is kept for the backward pass."""
    if recompute.granularity != "full" or recompute.layers is None:
        return [(layers, False)]
    if recompute.method == "block":
        return [([unit], number < (recompute.layers or 0)) for number, unit in enumerate(layers)]
    return [(layers[start : start + recompute.layers], True) for start in range(0, len(layers), recompute.layers)]


def _run(chunk: Chunk, units: Sequence[int], x: torch.Tensor, see: Observer, layer: LayerOf) -> torch.Tensor:
    for unit in units:
        x = see(unit, _passed(chunk, unit, partial(layer, unit, x)))
    return x


def _layer(
    chunk: Chunk, unit: int, x: torch.Tensor, *, documents: Documents | None, embedded: torch.Tensor | None
) -> torch.Tensor:
    weights, layer = chunk.blocks[f"layers.{unit - 1}"], chunk.model.layers[unit - 1]
    if layer.shared is not None:
        weights = {**inside(chunk.blocks["shared"], str(chunk.model.block_of(unit - 1))), **weights}
    if isinstance(layer.mixer, Lightning):
        decay = decays_of(layer.mixer, unit - 1, len(chunk.model.layers), chunk.tensor, x.device)
        weights = {**weights, "mixer.decay": decay}
    return chunk.layer(
        x,
        weights,
        layer,
        chunk.model,
        chunk.details,
        chunk.table.of_layer(chunk.model, unit - 1),
        chunk.tensor,
        chunk.experts,
        chunk.context,
        chunk.products,
        recompute_attention=chunk.recompute.granularity == "selective",
        documents=documents,
        embedded=embedded if layer.shared is not None else None,
    )


def _passed(chunk: Chunk, unit: int, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return what a unit computes, its weights brought before."""
    if chunk.way is None:
        return compute()
    chunk.way.reached(unit)
    out = compute()
    chunk.way.leaves(unit, out)
    return out


def _recomputed(chunk: Chunk, units: Sequence[int], x: torch.Tensor, see: Observer, layer: LayerOf) -> torch.Tensor:
    def group(x: torch.Tensor) -> torch.Tensor:
        return _run(chunk, units, x, lambda _, value: value, layer)

    out = checkpoint(group, x, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(out, torch.Tensor)
    return see(units[-1], out)
