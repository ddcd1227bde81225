"""Writes each ATen operator of a trace in one form: many names for one thing become one.

Whatever only changes a shape is a `view`, whatever swaps dimensions a `permute`, each part of a `split` a
`slice.Tensor`, every constant a `full`; copies and assertions go. None of these is made that changes nothing, and of
several in a row one. Dimensions count from the front, sizes are explicit. What says only how a result lies in memory,
or on which device, is dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch

from shardwright.errors import bad
from shardwright.spmd.operators import NAMESPACE
from shardwright.synthesis.graph import ITEM_BYTES, Argument, Node, Ref, Value

aten = torch.ops.aten
Found = Ref | tuple[Ref, ...]
Values = tuple[Value, ...]


def normalised(
    build: Builder, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values
) -> Found | None:
    """Append the nodes for one call of `target` with results `outputs`; return what it returns, None for an assertion.

    `args` hold references in place of tensors; dtypes are names.
    """
    if target in ASSERTIONS:
        return None
    if target in IDENTITIES:
        return first_argument(args)
    rule = RULES.get(target)
    if rule is not None:
        return rule(build, args, kwargs, outputs)
    place = DIMENSIONS.get(target)
    if place is not None and place < len(args):
        rank = len(build.value(first_argument(args)).shape)
        args = (*args[:place], _counted(args[place], rank), *args[place + 1 :])
    return _plain(build, target, args, kwargs, outputs)


def _plain(build: Builder, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    kept = {name: part for name, part in kwargs.items() if name not in PLACEMENT and part is not None}
    name = target._schema.name.split("::")[1]
    overload = target._overloadname
    name = f"{target.namespace}::{name}" if target.namespace == "prims" else name
    made = build.make(name if overload == "default" else f"{name}.{overload}", args, *outputs, **kept)
    return made if len(outputs) == 1 else tuple(Ref(made.node, number) for number in range(len(outputs)))


def _counted(dims: Any, rank: int) -> Any:
    """Return a dimension, or several, counted from the front."""
    return tuple(dim % max(rank, 1) for dim in dims) if isinstance(dims, tuple) else dims % max(rank, 1)


def _view(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    return view(build, args[0], outputs[0].shape)


def _permute(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    return permute(build, args[0], _counted(args[1], len(args[1])))


def _transpose(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    rank = len(outputs[0].shape)
    if rank < 2:
        return first_argument(args)
    first, second = _counted(args[1:3], rank) if len(args) > 1 else (0, rank - 1)
    order = list(range(rank))
    order[first], order[second] = second, first
    return permute(build, args[0], tuple(order))


def _expand(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    value, shape = build.value(args[0]), outputs[0].shape
    x = view(build, args[0], (1,) * (len(shape) - len(value.shape)) + value.shape)
    return x if build.value(x).shape == shape else build.make("expand", (x, shape), outputs[0])


def _slice(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    x, dim, start, end, step = args + (0, None, None, 1)[len(args) - 1 :]
    shape = build.value(x).shape
    dim = dim % len(shape)
    start, end, _ = slice(start, end).indices(shape[dim])
    return part(build, x, dim, start, end, step)


def _select(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    x, dim, index = args
    shape = build.value(x).shape
    dim, index = dim % len(shape), index % shape[dim]
    return view(build, part(build, x, dim, index, index + 1), outputs[0].shape)


def _splits(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    x, dim = args[0], (args[2] if len(args) > 2 else kwargs.get("dim", 0))
    dim = dim % len(build.value(x).shape)
    bounds = [0]
    for value in outputs:
        bounds.append(bounds[-1] + value.shape[dim])
    return tuple(part(build, x, dim, start, end) for start, end in itertools.pairwise(bounds))


def _unbind(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return tuple(
        found
        for index in range(len(outputs))
        for found in [_select(build, (args[0], dim, index), {}, (outputs[index],))]
        if isinstance(found, Ref)
    )


def _cat(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % len(outputs[0].shape)
    return build.make("cat", (tuple(x for x in args[0] if build.value(x).shape != (0,)), dim), outputs[0])


def _stack(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % len(outputs[0].shape)
    shape = (*outputs[0].shape[:dim], 1, *outputs[0].shape[dim + 1 :])
    return build.make("cat", (tuple(view(build, x, shape) for x in args[0]), dim), outputs[0])


def _slice_backward(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    x, sizes, dim, start, end, step = args
    start, end, _ = slice(start, end).indices(sizes[dim])
    if (start, end, step) == (0, sizes[dim], 1):
        return view(build, x, outputs[0].shape)
    return build.make("slice_backward", (x, sizes, dim % len(sizes), start, end, step), outputs[0])


def _select_backward(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    x, sizes, dim, index = args
    dim, index = dim % len(sizes), index % sizes[dim]
    x = view(build, x, (*sizes[:dim], 1, *sizes[dim + 1 :]))
    return _slice_backward(build, (x, sizes, dim, index, index + 1, 1), {}, outputs)


def _to_copy(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    if build.value(args[0]).dtype == outputs[0].dtype:
        return first_argument(args)
    return build.make("_to_copy", args[:1], outputs[0], dtype=outputs[0].dtype)


def _copy(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    """A copy into a tensor of which nothing stays."""
    copied = _to_copy(build, args[1:2], {}, outputs)
    return _expand(build, (copied,), {}, outputs)


def _sum(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    rank = len(build.value(args[0]).shape)
    dims = tuple(sorted(_counted(args[1], rank))) if len(args) > 1 and args[1] else tuple(range(rank))
    keep = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keepdim", False))
    x = _to_copy(build, args[:1], {}, (Value(build.value(args[0]).shape, outputs[0].dtype),))
    return build.make("sum.dim_IntList", (x, dims, keep), outputs[0]) if dims else x


def _constant(value: float | None) -> Callable[..., Found]:
    def rule(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
        filled = next(arg for arg in reversed(args) if not isinstance(arg, tuple | Ref)) if value is None else value
        return build.make("full", (outputs[0].shape, filled), outputs[0], dtype=outputs[0].dtype)

    return rule


def _arange(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
    start, _, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    whole = all(isinstance(number, int) for number in (start, step))
    # Between the last element and the next, so that rounding neither adds nor loses one.
    end = start + step * (outputs[0].shape[0] if whole else outputs[0].shape[0] - 0.5)
    return build.make("arange", (start, end, step), outputs[0], dtype=outputs[0].dtype)


def _renamed(name: str) -> Callable[..., Found]:
    def rule(build: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Values) -> Found:
        return build.make(name, args, *outputs, **kwargs)

    return rule


PLACEMENT = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}
NAMESPACES = ("aten", "prims", NAMESPACE)
ASSERTIONS = {
    aten._assert_tensor_metadata.default,
    aten._assert_async.msg,
    aten._assert_async.default,
    aten._assert_scalar.default,
    aten._linalg_check_errors.default,
}
# What PyTorch keeps in order by tokens, and leaves no tensor.
EFFECTS = (*ASSERTIONS, aten._print.default)
IDENTITIES = {
    aten.detach.default,
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.lift_fresh_copy.default,
}
# Where, among its arguments, an operator has the dimension or dimensions that it works on.
DIMENSIONS: dict[Any, int] = {
    aten._softmax.default: 1,
    aten._log_softmax.default: 1,
    aten._safe_softmax.default: 1,
    aten._softmax_backward_data.default: 2,
    aten._log_softmax_backward_data.default: 2,
    aten.cumsum.default: 1,
    aten.argmax.default: 1,
    aten.argmin.default: 1,
    aten.amax.default: 1,
    aten.amin.default: 1,
    aten.topk.default: 2,
    aten.sort.default: 1,
    aten.sort.stable: 1,
    aten.gather.default: 1,
    aten.scatter.src: 1,
    aten.scatter.value: 1,
    aten.scatter_add.default: 1,
    aten.index_select.default: 1,
    aten.index_add.default: 1,
    aten.flip.default: 1,
    aten.any.dim: 1,
    aten.all.dim: 1,
}
RULES: dict[Any, Callable[..., Found]] = {
    **dict.fromkeys(
        (aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dim,
         aten.squeeze.dims, aten.squeeze.default, aten.flatten.using_ints), _view,
    ),
    **dict.fromkeys((aten.t.default, aten.transpose.int), _transpose),
    aten.permute.default: _permute,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    **dict.fromkeys(
        (aten.split.Tensor, aten.unsafe_split.Tensor, aten.split_with_sizes.default, aten.chunk.default), _splits
    ),
    aten.unbind.int: _unbind,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.slice_backward.default: _slice_backward,
    aten.select_backward.default: _select_backward,
    aten._to_copy.default: _to_copy,
    aten.copy.default: _copy,
    aten.sum.dim_IntList: _sum,
    **dict.fromkeys((aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default), _constant(0)),
    **dict.fromkeys((aten.ones.default, aten.new_ones.default, aten.ones_like.default), _constant(1)),
    **dict.fromkeys(
        (aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default,
         aten.new_empty_strided.default), _constant(0),
    ),
    **dict.fromkeys(
        (aten.full.default, aten.new_full.default, aten.full_like.default, aten.scalar_tensor.default), _constant(None)
    ),
    **dict.fromkeys((aten.arange.default, aten.arange.start, aten.arange.start_step), _arange),
    **{
        getattr(aten, name).Scalar: _renamed(f"{name}.Tensor")
        for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")
    },
    aten._unsafe_index.Tensor: _renamed("index.Tensor"),
    aten._unsafe_index_put.default: _renamed("index_put"),
}  # fmt: skip


def value_of(tensor: torch.Tensor) -> Value:
    """Return shape and element type of a tensor. Raises `SpecError` for one that no program can hold."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in ITEM_BYTES or tensor.layout != torch.strided:
        form = f"{kind} elements" if kind not in ITEM_BYTES else f"the layout {tensor.layout}"
        raise bad(
            "the module", f"makes a tensor with {form}", f"programs hold dense tensors of {', '.join(ITEM_BYTES)}"
        )
    return Value(tuple(int(size) for size in tensor.shape), kind)


class Builder(Protocol):
    """What a rule needs of the graph that is being built."""

    def value(self, ref: Ref) -> Value: ...

    def origin(self, ref: Ref) -> Node: ...

    def make(self, op: str, args: tuple[Argument, ...], *outputs: Value, **kwargs: Argument) -> Ref: ...


def first_argument(args: tuple[Any, ...]) -> Ref:
    argument: Any = args[0]
    while isinstance(argument, tuple):
        argument = argument[0]
    return cast("Ref", argument)


def view(build: Builder, x: Ref, shape: tuple[int, ...]) -> Ref:
    """Return `x` in another shape; of several views one after another only the last is made."""
    value, made = build.value(x), build.origin(x)
    if made.op == "view":
        return view(build, first_argument(made.args), shape)
    return x if value.shape == shape else build.make("view", (x, shape), Value(shape, value.dtype))


def permute(build: Builder, x: Ref, dims: tuple[int, ...]) -> Ref:
    """Return `x` with its dimensions in the order `dims`. Two orders one after another are one: the backward, which
    reads transposed weights transposed again, reads the weights, and what was made of them can be forgotten."""
    value, made = build.value(x), build.origin(x)
    if made.op == "permute":
        before: Any = made.args[1]
        return permute(build, first_argument(made.args), tuple(before[dim] for dim in dims))
    if dims == tuple(range(len(dims))):
        return x
    return build.make("permute", (x, dims), Value(tuple(value.shape[dim] for dim in dims), value.dtype))


def part(build: Builder, x: Ref, dim: int, start: int, end: int, step: int = 1) -> Ref:
    """Return the elements start, start + step, … before end of dimension `dim`."""
    value = build.value(x)
    if (start, end, step) == (0, value.shape[dim], 1):
        return x
    shape = (*value.shape[:dim], len(range(start, end, step)), *value.shape[dim + 1 :])
    return build.make("slice.Tensor", (x, dim, start, end, step), Value(shape, value.dtype))
