"""Rows for operators that act along given dimensions (reductions, slices, concatenations, indexing, sorting) or regroup
dimensions (views).

A dimension along which elements are chosen or compared stays whole; all others may be cut. A view moves no element of
its parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from shardwright.synthesis.graph import Argument, Node, Ref, Value
from shardwright.synthesis.rules.signature import Dims, Signature

ALL = (frozenset({0}),)


def dimension(node: Node, position: int, rank: int, default: int = 0) -> int:
    """Return the dimension that an argument names, counted from the front."""
    given = node.kwargs.get("dim", node.args[position] if len(node.args) > position else default)
    return int(given) % max(rank, 1)  # type: ignore[arg-type]


def plain(value: Value, whole: Iterable[int] = ()) -> Dims:
    """Return an axis for each dimension of `value` but those that stay `whole`."""
    kept = set(whole)
    return tuple((str(n),) if size > 1 and n not in kept else () for n, size in enumerate(value.shape))


def sizes_of(value: Value) -> dict[str, int]:
    """Return the lengths of the axes that `plain` names."""
    return {str(number): size for number, size in enumerate(value.shape) if size > 1}


def along(node: Node, operands: tuple[Value, ...], *, position: int = 1, linear: bool = False) -> Signature:
    """Return the signature of an operator whose results have the operand's dimensions, one of which stays whole."""
    whole = {dimension(node, position, len(operands[0].shape), -1)}
    rank = len(operands[0].shape)
    return Signature(
        inputs=tuple(
            plain(operand, whole if len(operand.shape) == rank else range(len(operand.shape))) for operand in operands
        ),
        outputs=tuple(plain(operand, whole) for operand in node.outputs),
        sizes=sizes_of(operands[0]),
        linear=ALL if linear else (),
    )


def reduction(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of a sum or mean over dimensions: cut along one of them, it is a partial sum."""
    shape = operands[0].shape
    rank = max(len(shape), 1)
    given = node.args[1] if len(node.args) > 1 else None
    listed = given if isinstance(given, tuple) else ()
    gone = {int(dim) % rank for dim in listed} if listed else set(range(rank))  # type: ignore[arg-type]
    keep = len(node.outputs[0].shape) == rank
    names = plain(operands[0])
    left = tuple(() if number in gone else name for number, name in enumerate(names) if keep or number not in gone)
    return Signature(inputs=(names,), outputs=(left,), sizes=sizes_of(operands[0]), linear=ALL)


def extreme(node: Node, operands: tuple[Value, ...], *, position: int = 1) -> Signature:
    """Return the signature of what needs all elements along a dimension: a maximum, an argument of one, a norm."""
    rank = max(len(operands[0].shape), 1)
    given = node.args[position] if len(node.args) > position else node.kwargs.get("dim")
    listed = given if isinstance(given, tuple) else () if given is None else (given,)
    gone = {int(dim) % rank for dim in listed} if listed else set(range(rank))  # type: ignore[arg-type]
    names = plain(operands[0], gone)
    results = tuple(
        names if len(output.shape) == rank else tuple(name for number, name in enumerate(names) if number not in gone)
        for output in node.outputs
    )
    return Signature(inputs=(names,), outputs=results, sizes=sizes_of(operands[0]))


def sliced(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of a slice or its gradient: the sliced dimension stays whole unless all of it is taken."""
    long, short = sorted((operands[0], node.outputs[0]), key=lambda value: -value.elements)
    differ = [number for number, (a, b) in enumerate(zip(long.shape, short.shape, strict=True)) if a != b]
    part = _stretch(node, long, short, differ[0]) if len(differ) == 1 else 0
    if part > 1:
        pieces = _pieces(long, (short,) * (long.shape[differ[0]] // part), differ[0], joins=False)
        wide, narrow = pieces.inputs[0], pieces.outputs[0]
        sides = (wide, narrow) if operands[0] is long else (narrow, wide)
        return Signature(inputs=sides[:1], outputs=sides[1:], sizes=pieces.sizes, linear=ALL, within=pieces.within)
    return Signature(
        inputs=(plain(operands[0], differ),),
        outputs=(plain(node.outputs[0], differ),),
        sizes=sizes_of(short),
        linear=ALL,
    )


def _stretch(node: Node, long: Value, short: Value, dim: int) -> int:
    """Return the length of the slice if it is one of several equal stretches side by side, else 0."""
    numbers = [argument for argument in node.args if isinstance(argument, int)]
    if len(numbers) < 3 or (len(numbers) > 3 and numbers[3] != 1):
        return 0
    length = short.shape[dim]
    return length if numbers[1] % length == 0 and long.shape[dim] % length == 0 else 0


def selected(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of `select` and `unbind`, which drop a dimension, and of their gradients, which bring it."""
    wide = max(operands[0], node.outputs[0], key=lambda output: len(output.shape))
    gone = dimension(node, {"select_backward": 2}.get(node.op, 1), len(wide.shape))
    names = plain(wide, {gone})
    less = tuple(name for number, name in enumerate(names) if number != gone)
    many = tuple(names if len(output.shape) == len(wide.shape) else less for output in node.outputs)
    return Signature(inputs=(names if operands[0] is wide else less,), outputs=many, sizes=sizes_of(wide), linear=ALL)


def stacked(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of a stack along a new dimension."""
    out = node.outputs[0]
    new = dimension(node, 1, len(out.shape))
    names = plain(out, {new})
    return Signature(
        inputs=(tuple(name for number, name in enumerate(names) if number != new),) * len(operands),
        outputs=(names,),
        sizes=sizes_of(out),
        linear=(frozenset(range(len(operands))),),
    )


def joined(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of a concatenation. Parts of one length leave the axis inside them to be cut."""
    out = node.outputs[0]
    return _pieces(out, operands, dimension(node, 1, len(out.shape)), joins=True)


def split(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of a split. Parts of one length leave the axis inside them to be cut."""
    return _pieces(operands[0], node.outputs, dimension(node, 2, len(operands[0].shape)), joins=False)


def _pieces(whole: Value, parts: tuple[Value, ...], dim: int, *, joins: bool) -> Signature:
    names = plain(whole, {dim})
    alike = len({part.shape for part in parts}) == 1 and parts[0].shape[dim] > 1
    inner = ("in",) if alike else ()
    long = (*names[:dim], ("of", "in") if alike else (), *names[dim + 1 :])
    short = (*names[:dim], inner, *names[dim + 1 :])
    sizes = sizes_of(whole) | {"of": len(parts), "in": parts[0].shape[dim]}
    sides = ((short,) * len(parts), (long,)) if joins else ((long,), (short,) * len(parts))
    together = (frozenset(range(len(parts))),) if joins else ALL
    return Signature(inputs=sides[0], outputs=sides[1], sizes=sizes, linear=together, within=frozenset({"of"}))


def moved_along(node: Node, operands: tuple[Value, ...], *, linear: bool = False) -> Signature:
    """Return the signature of what moves elements along the dimensions that its last argument lists, all if it has
    none: a flip, a roll."""
    shape = operands[0].shape
    given = node.args[-1] if len(node.args) > (2 if node.op == "roll" else 1) else ()
    listed = given if isinstance(given, tuple) and given else range(len(shape))
    whole = {int(dim) % max(len(shape), 1) for dim in listed}  # type: ignore[arg-type]
    names = plain(operands[0], whole)
    return Signature(inputs=(names,), outputs=(names,), sizes=sizes_of(operands[0]), linear=ALL if linear else ())


def triangle(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of what keeps a triangle of the last two dimensions."""
    rank = len(operands[0].shape)
    names = plain(operands[0], (rank - 2, rank - 1))
    return Signature(inputs=(names,), outputs=(names,), sizes=sizes_of(operands[0]), linear=ALL)


def padded(node: Node, operands: tuple[Value, ...], *, linear: bool = False) -> Signature:
    """Return the signature of a padding, with a constant, or with the tensor's own elements (`linear`)."""
    whole = _padded_dimensions(node, 1, len(operands[0].shape))
    return Signature(
        inputs=(plain(operands[0], whole),),
        outputs=(plain(node.outputs[0], whole),),
        sizes=sizes_of(operands[0]),
        linear=ALL if linear else (),
    )


def padded_backward(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of the gradient of a padding, which reads the padded tensor for its shape."""
    gradient, x = operands
    whole = _padded_dimensions(node, 2, len(x.shape))
    names = plain(x, whole)
    return Signature(inputs=(plain(gradient, whole), names), outputs=(names,), sizes=sizes_of(x), linear=ALL)


def _padded_dimensions(node: Node, position: int, rank: int) -> set[int]:
    """Return the dimensions that the argument at `position` pads, two numbers each, the last dimension first. One that
    is as long as before may have moved: -1 at one end and 1 at the other."""
    pads = node.args[position]
    assert isinstance(pads, tuple)
    return {rank - 1 - number // 2 for number, amount in enumerate(pads) if amount}


def gathered(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of `gather` and `scatter`, in which the index has the operand's dimensions."""
    dim = dimension(node, 1, len(operands[0].shape))
    scatters = node.op.startswith("scatter")
    shape = operands[0].shape
    whole = {dim, *(n for operand in operands for n, size in enumerate(operand.shape) if size != shape[n])}
    index: Dims = plain(operands[1], whole)
    if not scatters and operands[1].shape[dim] > 1:
        index = (*index[:dim], ("i",), *index[dim + 1 :])
    result = plain(node.outputs[0], whole) if scatters else index
    others = tuple(plain(operand, whole) for operand in operands[2:])
    sizes = sizes_of(operands[0]) | {"i": operands[1].shape[dim]}
    return Signature(inputs=(plain(operands[0], whole), index, *others), outputs=(result,), sizes=sizes)


def rows_scattered(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of `scatter_add`: cut along the index, it is a partial sum to which the operand is added."""
    base, index, source = operands
    rank = len(base.shape)
    dim = dimension(node, 1, rank)
    whole = {n for n in range(rank) if n == dim or not base.shape[n] == index.shape[n] == source.shape[n]}
    names, chosen = plain(base, whole), plain(index, whole)
    if index.shape[dim] == source.shape[dim] > 1:
        chosen = (*chosen[:dim], ("i",), *chosen[dim + 1 :])
    return Signature(
        inputs=(names, chosen, chosen),
        outputs=(names,),
        sizes=sizes_of(base) | {"i": index.shape[dim]},
        terms=frozenset({0}),
        linear=(frozenset({0, 2}),),
    )


def rows_selected(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of `index_select`: the index may be cut, and with it the result."""
    names, cut, sizes = _along_an_index(node, operands)
    return Signature(inputs=(names, (("i",),)), outputs=(cut,), sizes=sizes, linear=ALL)


def rows_added(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of `index_add`: cut along the index, it is a partial sum to which the operand is added."""
    names, cut, sizes = _along_an_index(node, operands)
    linear = (frozenset({0, 2}),)
    return Signature(inputs=(names, (("i",),), cut), outputs=(names,), sizes=sizes, terms=frozenset({0}), linear=linear)


def _along_an_index(node: Node, operands: tuple[Value, ...]) -> tuple[Dims, Dims, dict[str, int]]:
    """Return the names of an operand's dimensions, those of what an index picks along one of them, and their sizes."""
    dim = dimension(node, 1, len(operands[0].shape))
    names = plain(operands[0], {dim})
    return names, (*names[:dim], ("i",), *names[dim + 1 :]), sizes_of(operands[0]) | {"i": operands[1].elements}


def indexed(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of `index` and `index_put` by tensors that stand at neighbouring dimensions."""
    given = node.args[1]
    slots: tuple[Argument, ...] = given if isinstance(given, tuple) else (given,)
    at = [number for number, slot in enumerate(slots) if isinstance(slot, Ref)]
    base = operands[0]
    names = plain(base, at)
    chosen = operands[1 : 1 + len(at)]
    shape = max((index.shape for index in chosen), key=len)
    grid = tuple(f"i{n}" if size > 1 else "" for n, size in enumerate(shape))
    near = at == list(range(at[0], at[0] + len(at)))
    front = at[0] if near else 0
    rest = [name for number, name in enumerate(names) if number not in at]
    spread = tuple((name,) if name else () for name in grid)
    picked = (*rest[:front], *spread, *rest[front:])
    indices = tuple(
        tuple((grid[len(shape) - len(index.shape) + n],) if size > 1 else () for n, size in enumerate(index.shape))
        for index in chosen
    )
    sizes = sizes_of(base) | {f"i{n}": size for n, size in enumerate(shape)}
    if node.op.startswith("index_put"):
        values = _aligned(operands[-1], picked)
        adds = len(node.args) > 3 and bool(node.args[3])
        free: frozenset[str] = frozenset() if adds else frozenset(name for name in grid if name)
        return Signature(
            inputs=(names, *indices, values), outputs=(names,), sizes=sizes, within=free,
            terms=frozenset({0}), linear=(frozenset({0, len(at) + 1}),),
        )  # fmt: skip
    return Signature(inputs=(names, *indices), outputs=(picked,), sizes=sizes, linear=ALL)


def _aligned(value: Value, dims: Dims) -> Dims:
    last = dims[len(dims) - len(value.shape) :]
    return tuple(axes if size > 1 else () for axes, size in zip(last, value.shape, strict=True))


def view(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of a view: the axes are the common factors of the old and the new dimensions."""
    old, new = operands[0].shape, node.outputs[0].shape
    inputs: list[list[str]] = [[] for _ in old]
    outputs: list[list[str]] = [[] for _ in new]
    sizes: dict[str, int] = {}
    for some, others in groups(old, new):
        for size in factors([old[dim] for dim in some], [new[dim] for dim in others]):
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
    for dim in some:
        if math.prod(sizes[there] for there in dims[dim]) < shape[dim]:
            dims[dim].append(name)
            return


def groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Return the smallest runs of dimensions, longer than 1, of both shapes whose products agree."""
    groups: list[tuple[list[int], list[int]]] = []
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
                return groups
        groups.append((some, others))
    return groups


def factors(old: list[int], new: list[int]) -> list[int]:
    """Return the common factors of both runs of dimensions, outermost first; none if they do not fall apart."""
    factors: list[int] = []
    left, right = list(old), list(new)
    while left and right:
        size = min(left[0], right[0])
        if left[0] % size or right[0] % size:
            return []
        factors.append(size)
        for run in (left, right):
            run[0] //= size
            if run[0] == 1:
                run.pop(0)
    return factors


def _others(operands: tuple[Value, ...]) -> tuple[Dims, ...]:
    return tuple(((),) * len(value.shape) for value in operands[1:])


def moved(node: Node, operands: tuple[Value, ...]) -> Signature:
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
