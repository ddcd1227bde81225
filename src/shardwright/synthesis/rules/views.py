"""Rows for operators that give a tensor another shape and move no element of its parts."""

from __future__ import annotations

import math

from shardwright.synthesis.graph import Node, Value
from shardwright.synthesis.rules.signature import Dims, Signature

ALL = (frozenset({0}),)


def view(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of a view: the axes are the common factors of the old and the new dimensions."""
    old, new = operands[0].shape, node.outputs[0].shape
    inputs: list[list[str]] = [[] for _ in old]
    outputs: list[list[str]] = [[] for _ in new]
    sizes: dict[str, int] = {}
    for some, others in groups(old, new):
        for size in factors([old[one] for one in some], [new[one] for one in others]):
            name = f"{len(sizes)}"
            sizes[name] = size
            _place(inputs, some, old, name, sizes)
            _place(outputs, others, new, name, sizes)
    return Signature(
        inputs=(tuple(map(tuple, inputs)), *_others(operands)),
        outputs=(tuple(map(tuple, outputs)),),
        sizes=sizes,
        linear=ALL,
    )


def _place(dims: list[list[str]], some: list[int], shape: tuple[int, ...], name: str, sizes: dict[str, int]) -> None:
    """Put the axis `name` into the first dimension of `some` that is not full yet."""
    for one in some:
        if math.prod(sizes[there] for there in dims[one]) < shape[one]:
            dims[one].append(name)
            return


def groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Return the smallest runs of dimensions, longer than 1, of both shapes whose products agree."""
    found: list[tuple[list[int], list[int]]] = []
    left = [number for number, size in enumerate(old) if size != 1]
    right = [number for number, size in enumerate(new) if size != 1]
    while left and right:
        some, others = [left.pop(0)], [right.pop(0)]
        before, after = old[some[0]], new[others[0]]
        while before != after:
            if before < after and left:
                some.append(left.pop(0))
                before *= old[some[-1]]
            elif after < before and right:
                others.append(right.pop(0))
                after *= new[others[-1]]
            else:
                return found
        found.append((some, others))
    return found


def factors(old: list[int], new: list[int]) -> list[int]:
    """Return the common factors of both runs of dimensions, outermost first; none if they do not fall apart."""
    found: list[int] = []
    left, right = list(old), list(new)
    while left and right:
        size = min(left[0], right[0])
        if left[0] % size or right[0] % size:
            return []
        found.append(size)
        for run in (left, right):
            run[0] //= size
            if run[0] == 1:
                run.pop(0)
    return found


def _others(operands: tuple[Value, ...]) -> tuple[Dims, ...]:
    return tuple(((),) * len(value.shape) for value in operands[1:])


def moved(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of a permutation of dimensions."""
    shape = operands[0].shape
    rank = len(shape)
    if node.op == "permute":
        order = [int(dim) % rank for dim in node.args[1]]  # type: ignore[union-attr, arg-type]
    elif node.op == "t":
        order = list(range(rank))[::-1]
    else:
        order = list(range(rank))
        first, second = (int(dim) % rank for dim in node.args[1:3])  # type: ignore[arg-type]
        order[first], order[second] = second, first
    names = [(str(number),) if size > 1 else () for number, size in enumerate(shape)]
    return Signature(
        inputs=(tuple(names),),
        outputs=(tuple(names[number] for number in order),),
        sizes={str(number): size for number, size in enumerate(shape) if size > 1},
        linear=ALL,
    )


def expand(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of an expansion: new dimensions may be cut, which costs nothing."""
    old, new = operands[0].shape, node.outputs[0].shape
    offset = len(new) - len(old)
    return Signature(
        inputs=(tuple((str(n + offset),) if size > 1 else () for n, size in enumerate(old)),),
        outputs=(tuple((str(n),) if size > 1 else () for n, size in enumerate(new)),),
        sizes={str(n): size for n, size in enumerate(new) if size > 1},
        linear=ALL,
    )
