"""How the dimensions of an operator's operands and results hang together.

A signature names an axis for every dimension that may be cut, as in an einsum: a matrix product is `mk,kn->mn`. Cutting
an axis cuts every operand and result that has it; an operand without it is needed whole; a result without it is a
partial sum. In the notation

    .       a dimension that must stay whole (a softmax, a convolved dimension), or of length 1
    (ab)    a dimension that is the product of axes, the outermost first
    *       any number of leading dimensions
    +       before an operand: it is added to the result, so it enters a partial sum as one

Each axis gives one rule. Where a result without the cut axis is no sum, `unlike` says what it is, and `sends` what is
all-reduced inside the operator. An operator that is linear in some operands together also lets partial sums pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from shardwright.records import record
from shardwright.synthesis.graph import COMPUTE, PARTIAL, REPLICATED, Node, Property, Sharded, Value

# The axes of each dimension of a tensor; none for a dimension that stays whole.
Dims: TypeAlias = tuple[tuple[str, ...], ...]


@record
class Signature:
    """The axes of operands and results, and their lengths. `anchors` are the axes from which the search for cuts
    starts: those along which real work is done. Axes `within` only make up a dimension; they are never cut. `straight`
    axes, into which an index points, are cut in one stretch only."""

    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    sizes: Mapping[str, int]
    terms: frozenset[int] = frozenset()
    linear: tuple[frozenset[int], ...] = ()
    unlike: Mapping[tuple[str, int], Property] = field(default_factory=dict)
    sends: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    anchors: frozenset[str] = frozenset()
    within: frozenset[str] = frozenset()
    straight: frozenset[str] = frozenset()

    def allows(self, cut: Cut) -> bool:
        """Return whether an axis may be cut so."""
        whole_units = self.sizes[cut.axis] % (cut.outer * cut.units) == 0
        return cut.axis not in self.within and (cut.outer == 1 or cut.axis not in self.straight) and whole_units


@record(kw_only=False)
class Cut:
    """A cut of an axis into `units`, `outer` of them over again."""

    axis: str
    units: int
    outer: int = 1


@record
class OperatorRule:
    """One way to run an operator. `cut` is the sharding that divides the work, None if every rank does all of it;
    `sends` are the bytes of each all-reduce inside the operator."""

    name: str
    inputs: tuple[Property, ...]
    outputs: tuple[Property, ...]
    cut: Sharded | None = None
    sends: tuple[int, ...] = ()


def parse(text: str, node: Node, operands: tuple[Value, ...], *, anchors: str = "", **more: object) -> Signature:
    """Return the signature that `text` writes, with the lengths of the tensors. `more` fills the other fields."""
    left, right = text.replace(" ", "").split("->")
    words = left.split(",") if left else []
    shapes = [value.shape for value in operands]
    results = [value.shape for value in node.outputs]
    inputs = tuple(_dims(word.lstrip("+"), len(shape)) for word, shape in zip(words, shapes, strict=True))
    outputs = tuple(_dims(word, len(shape)) for word, shape in zip(right.split(","), results, strict=True))
    return Signature(
        inputs=inputs,
        outputs=outputs,
        sizes=lengths((*inputs, *outputs), (*shapes, *results)),
        terms=frozenset(number for number, word in enumerate(words) if word.startswith("+")),
        anchors=frozenset(anchors),
        **more,  # type: ignore[arg-type]
    )


def _dims(word: str, rank: int) -> Dims:
    """Return the axes of a word of the notation; `*` becomes as many axes as `rank` leaves."""
    dims: list[tuple[str, ...]] = []
    inside: list[str] | None = None
    star = 0
    for letter in word:
        if letter == "(":
            inside = []
        elif letter == ")":
            dims.append(tuple(inside or ()))
            inside = None
        elif inside is not None:
            inside.append(letter)
        elif letter == "*":
            star = len(dims)
            dims.append(("*",))
        else:
            dims.append(() if letter == "." else (letter,))
    if ("*",) in dims:
        count = rank - len(dims) + 1
        dims[star : star + 1] = [(f"*{number}",) for number in range(count)]
    if len(dims) != rank:
        raise ValueError(f"{word!r} does not fit {rank} dimensions")
    return tuple(dims)


def lengths(dims: tuple[Dims, ...], shapes: tuple[tuple[int, ...], ...]) -> dict[str, int]:
    """Return the length of each axis: those alone in a dimension first, then the one that a product leaves open."""
    sizes: dict[str, int] = {}
    tensors = zip(dims, shapes, strict=True)
    pairs = [(axes, size) for named, shape in tensors for axes, size in zip(named, shape, strict=True)]
    waiting = [pair for pair in pairs if pair[0]]
    while waiting:
        ready = [pair for pair in waiting if sum(axis not in sizes for axis in pair[0]) <= 1]
        if not ready:
            raise ValueError(f"the axes {waiting[0][0]} have no lengths")
        for axes, size in ready:
            known = math.prod(sizes[axis] for axis in axes if axis in sizes)
            for axis in axes:
                sizes.setdefault(axis, size // known)
            if math.prod(sizes[axis] for axis in axes) != size:
                raise ValueError(f"the axes {axes} do not make up a dimension of {size}")
        waiting = [pair for pair in waiting if pair not in ready]
    return sizes


def placed(dims: Dims, sizes: Mapping[str, int], cut: Cut, ratio: str = COMPUTE) -> Sharded | None:
    """Return how a tensor with `dims` is sharded by `cut`, None if it has not that axis."""
    for number, axes in enumerate(dims):
        if cut.axis in axes:
            before = math.prod(sizes[axis] for axis in axes[: axes.index(cut.axis)])
            return Sharded(number, cut.units, ratio, before * cut.outer)
    return None


def seen(dims: Dims, sizes: Mapping[str, int], held: Sharded) -> Cut | None:
    """Return the cut of an axis that shards a tensor with `dims` as `held`, None if it cuts across axes."""
    before = 1
    for axis in dims[held.dim]:
        size = sizes[axis]
        if held.outer % before == 0 and size % (held.outer // before * held.units) == 0:
            return Cut(axis, held.units, held.outer // before)
        before *= size
    return None


def replicated(node: Node) -> OperatorRule:
    """Return the rule that needs everything whole."""
    return OperatorRule(
        name="replicated", inputs=(REPLICATED,) * len(node.inputs), outputs=(REPLICATED,) * len(node.outputs)
    )


def cut_rule(signature: Signature, cut: Cut, ratio: str = COMPUTE) -> OperatorRule:
    """Return the rule that cuts one axis in the proportions of `ratio`."""
    sharded = tuple(placed(dims, signature.sizes, cut, ratio) for dims in signature.inputs)
    results: list[Property] = []
    for number, dims in enumerate(signature.outputs):
        outputs = placed(dims, signature.sizes, cut, ratio)
        results.append(outputs or signature.unlike.get((cut.axis, number), PARTIAL))
    summed = PARTIAL in results
    operands = tuple(
        output or (PARTIAL if summed and number in signature.terms else REPLICATED)
        for number, output in enumerate(sharded)
    )
    first = next((output for output in (*sharded, *results) if isinstance(output, Sharded)), None)
    return OperatorRule(
        name=cut.axis, inputs=operands, outputs=tuple(results), cut=first, sends=signature.sends.get(cut.axis, ())
    )


def linear_rules(signature: Signature) -> list[OperatorRule]:
    """Return the rules that let partial sums pass."""
    count = len(signature.inputs)
    return [
        OperatorRule(
            name="sum",
            inputs=tuple(PARTIAL if number in group else REPLICATED for number in range(count)),
            outputs=(PARTIAL,) * len(signature.outputs),
        )
        for group in signature.linear
    ]
