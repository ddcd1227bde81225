"""Nodes that only show a value otherwise: in another shape, with dimensions in another order, in part. None is made
that changes nothing, and of several in a row one."""

from __future__ import annotations

from typing import Any, Protocol, cast

from shardwright.synthesis.graph import Argument, Node, Ref, Value


class Builder(Protocol):
    """What a rule needs of the graph that is being built."""

    def value(self, ref: Ref) -> Value: ...

    def origin(self, ref: Ref) -> Node: ...

    def make(self, op: str, args: tuple[Argument, ...], *outputs: Value, **kwargs: Argument) -> Ref: ...


def first_argument(args: tuple[Any, ...]) -> Ref:
    found: Any = args[0]
    while isinstance(found, tuple):
        found = found[0]
    return cast("Ref", found)


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
    size = value.shape[dim]
    if (start, end, step) == (0, size, 1):
        return x
    shape = (*value.shape[:dim], len(range(start, end, step)), *value.shape[dim + 1 :])
    return build.make("slice.Tensor", (x, dim, start, end, step), Value(shape, value.dtype))
