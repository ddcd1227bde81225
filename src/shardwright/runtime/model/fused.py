"""Tensors of a Hugging Face file that hold several parameters, or one turned round: where in them a parameter lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from shardwright.records import record
from shardwright.runtime.model.parameters import ModelParameter, mixer_shape
from shardwright.spec.layer import Attention
from shardwright.spec.mixers import Mamba, Mixer
from shardwright.spec.model import Model

Index = tuple[int | slice, ...]
# How a tensor holds parameters.
#
# * `turned`: as GPT-2 keeps matrices, [inputs, outputs]; its `thirds` are queries, keys and values.
# * Queries, keys and values `one after the other`; `head by head`, each with all three; `group by group`, the queries
#   of a group before its key and value; in four `quarters`, each with queries, values and keys (CodeGen).
# * Queries and their gate `by head`, one after the other; what a head of lightning attention, or a key head of the
#   delta rule, has `by head of a mixer`. Two projections whose rows take turns, and tables with the `rows of each head
#   of a mixer`, in Mamba of several heads (Zamba).
# * Gate and up projection are the first and the second half of the rows.
# * A vector is a matrix with a `row of each head`, or with one row; or it is the third of four dimensions, others of
#   one.
# * All experts in one tensor: [experts, outputs, inputs], or turned; gpt-oss has gates in even columns.
Form = Literal[
    "alone", "turned", "turned thirds", "head by head", "group by group", "one after the other", "quarters of q, v, k",
    "first half", "second half", "first half of experts", "second half of experts", "one of experts",
    "even columns of experts", "odd columns of experts", "one of turned experts", "row of each head", "one row",
    "query and gate by head", "by head of a mixer", "between ones", "rows in turn", "rows of each head of a mixer",
]  # fmt: skip
PARTS = ("query", "key", "value")
TAPS = "_taps"
WHOLE = slice(None)


@record
class TensorSource:
    """A tensor of a file that holds a parameter: in it, viewed in the shape `view` (None: as it is), at `index`,
    `turned` where that is the transpose. `shape` is that of the tensor, None: that of the parameter."""

    name: str
    shape: tuple[int, ...] | None = None
    view: tuple[int, ...] | None = None
    index: Index = ()
    turned: bool = False

    def taken(self, tensor: torch.Tensor, parameter: ModelParameter) -> torch.Tensor:
        """Return the parameter out of the tensor, which must have as many elements as there should be."""
        value = (tensor if self.view is None else tensor.reshape(self.view))[self.index]
        value = value.transpose(-2, -1) if self.turned else value
        return value.reshape(parameter.shape) if self.view is not None else value

    def put(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        place = (tensor if self.view is None else tensor.view(self.view))[self.index]
        place = place.transpose(-2, -1) if self.turned else place
        place.copy_(value.reshape(place.shape))


def source_in(name: str, form: Form, model: Model, parameter: ModelParameter, block: str) -> TensorSource:
    """Return where a parameter lies in a tensor of a form; `block` is what it is called in a layer of ours."""
    shape, matrix = parameter.shape, len(parameter.shape) > 1
    if form == "alone":
        return TensorSource(name=name)
    if form == "turned":
        return TensorSource(name=name, shape=shape[::-1], turned=matrix)
    if form in ("row of each head", "one row"):
        rows = 1 if form == "one row" else shape[0] // model.self_attention.head_dim
        return TensorSource(name=name, shape=(rows, shape[0] // rows), view=shape)
    if form == "rows of each head of a mixer":
        heads = next(kind.mixer.heads or 1 for kind in model.kinds if isinstance(kind.mixer, Mamba))
        return TensorSource(name=name, shape=(heads, shape[0] // heads, *shape[1:]), view=shape)
    if form == "between ones":
        return TensorSource(name=name, shape=(1, 1, *shape, 1), view=shape)
    part = block.rsplit(".", 1)[-1]
    if form == "query and gate by head":
        heads, inputs = model.self_attention.heads, shape[1:]
        return TensorSource(
            name=name, shape=(2 * shape[0], *inputs), view=(heads, 2, shape[0] // heads, *inputs),
            index=(WHOLE, int(part == "gate")),
        )  # fmt: skip
    if part in PARTS:
        return _attention_source(name, form, model.self_attention, parameter, PARTS.index(part))
    if form in ("first half", "second half"):
        rows = shape[0]
        index: Index = (slice(0, rows) if form == "first half" else slice(rows, 2 * rows),)
        whole = (2 * rows, *shape[1:])
        return TensorSource(name=name, shape=whole, view=whole, index=index)
    return _expert_source(name, form, model, parameter)


def _attention_source(
    name: str, form: Form, attention: Attention, parameter: ModelParameter, number: int
) -> TensorSource:
    inputs, dim = parameter.shape[1:], attention.head_dim
    heads, groups = attention.heads, attention.kv_heads
    rows = (heads + 2 * groups) * dim
    whole = (rows, *inputs)
    if form == "turned thirds":
        shape = (*inputs, rows)
        return TensorSource(
            name=name, shape=shape, view=(*inputs, 3, rows // 3), index=(*[WHOLE] * len(inputs), number),
            turned=bool(inputs),
        )  # fmt: skip
    if form == "one after the other" or (form == "group by group" and groups == 1):
        first = (0, heads * dim, (heads + groups) * dim)[number]
        return TensorSource(name=name, shape=whole, view=whole, index=(slice(first, first + parameter.shape[0]),))
    if form == "quarters of q, v, k":
        order = (0, 2, 1)[number]
        return TensorSource(name=name, shape=whole, view=(4, 3, rows // 12, *inputs), index=(WHOLE, order))
    shared = heads // groups
    queries: int | slice = slice(0, shared) if number == 0 else shared + number - 1
    return TensorSource(name=name, shape=whole, view=(groups, shared + 2, dim, *inputs), index=(WHOLE, queries))


def mixer_source(
    name: str, form: Form, mixer: Mixer, parameter: ModelParameter, part: str, together: Sequence[str]
) -> TensorSource:
    """Return where a projection or the convolution of a mixer lies in a tensor that holds several `together`."""
    shape = mixer_shape(mixer)
    sizes, inputs = [shape.rows[other.removesuffix(TAPS)] for other in together], parameter.shape[1:]
    number, whole = together.index(part), (sum(sizes), *inputs)
    if form == "rows in turn":
        view = (sizes[0], len(sizes), *inputs)
        return TensorSource(name=name, shape=whole, view=view, index=(WHOLE, number))
    if form == "by head of a mixer":
        sizes = [size // shape.pieces for size in sizes]
        view, before = (shape.pieces, sum(sizes), *inputs), sum(sizes[:number])
        return TensorSource(name=name, shape=whole, view=view, index=(WHOLE, slice(before, before + sizes[number])))
    before = sum(sizes[:number])
    return TensorSource(name=name, shape=whole, view=whole, index=(slice(before, before + sizes[number]),))


def _expert_source(name: str, form: Form, model: Model, parameter: ModelParameter) -> TensorSource:
    """A parameter of one expert in a tensor of all of them."""
    shape, expert = parameter.shape, parameter.expert
    experts = next(kind.moe.experts for kind in model.kinds if kind.moe)
    assert expert is not None, "experts have numbers"
    outputs, inputs = shape[0], shape[1:]
    if form == "one of experts":
        whole = (experts, *shape)
        return TensorSource(name=name, shape=whole, view=whole, index=(expert,))
    if form == "one of turned experts":
        whole = (experts, *inputs, outputs)
        return TensorSource(name=name, shape=whole, view=whole, index=(expert,), turned=bool(inputs))
    if form in ("first half of experts", "second half of experts"):
        whole = (experts, 2 * outputs, *inputs)
        start = 0 if form == "first half of experts" else outputs
        return TensorSource(name=name, shape=whole, view=whole, index=(expert, slice(start, start + outputs)))
    column = 0 if form == "even columns of experts" else 1
    return TensorSource(
        name=name, shape=(experts, *inputs, 2 * outputs), view=(experts, *inputs, outputs, 2),
        index=(expert, *[WHOLE] * (len(inputs) + 1), column), turned=bool(inputs),
    )  # fmt: skip
