"""Finds the blocks of a graph that occur several times: the layers of a model.

The operators of the layers follow each other, forward from the first to the last, backward from the last to the first,
so the sequence of operators with their arguments and shapes is periodic twice. The two periods are joined where the
operators of a stretch of the backward read those of one stretch of the forward, and the wiring of every pair of
neighbouring blocks is compared: what one reads inside itself, in the block before or after, among its own parameters or
outside all blocks, the other must read in the same place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from shardwright.records import record
from shardwright.synthesis.graph import Argument, Graph, Node, Ref, RepeatedBlock

_LEAVES = {"parameter", "buffer"}
LEAST_OPERATORS = 8


@record(kw_only=False)
class _Run:
    """`count` stretches of `period` operators each, the first at `start`."""

    start: int
    period: int
    count: int

    def stretch(self, number: int) -> range:
        first = self.start + number * self.period
        return range(first, first + self.period)

    @property
    def covered(self) -> int:
        return self.period * self.count

    @property
    def end(self) -> int:
        return self.start + self.period * self.count


def with_repeats(graph: Graph) -> Graph:
    """Return `graph` with its repeated blocks, those with the most operators first; with none if there are none."""
    body = [node for node in graph.nodes if node.op not in _LEAVES]
    left = list(_runs(_letters(body)))
    blocks: list[RepeatedBlock] = []
    while left:
        run = left.pop(0)
        for other in left:
            forward, backward = sorted((run, other), key=lambda one: one.start)
            repeat = _joined(graph, body, forward, backward)
            if repeat is not None:
                left.remove(other)
                blocks.append(repeat)
                break
    return replace(graph, repeats=tuple(blocks))


def _letters(body: Sequence[Node]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a number for each operator, the same for the same operator, arguments and shapes."""
    known: dict[Any, int] = {}
    shapes = {Ref(node.name, number): value for node in body for number, value in enumerate(node.outputs)}
    letters = []
    for node in body:
        kwargs = tuple(sorted((name, _plain(node.op, part)) for name, part in node.kwargs.items()))
        read = tuple(shapes.get(ref) for ref in node.inputs)
        word = (node.op, _plain(node.op, node.args), kwargs, node.outputs, read)
        letters.append(known.setdefault(word, len(known)))
    return np.array(letters, dtype=np.int64)


def _plain(op: str, argument: Argument) -> Any:
    """Return the argument with "*" in place of every tensor; numbers of operators that draw at random do not count."""
    if op in ("dropout", "attention", "attention_backward") and isinstance(argument, tuple) and argument:
        argument = argument[:-1]
    if isinstance(argument, tuple):
        return tuple(_plain("", part) for part in argument)
    return "*" if isinstance(argument, Ref) else (type(argument).__name__, argument)


def _runs(letters: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[_Run]:
    """Yield the periodic stretches of the sequence, none overlapping another, those that cover most first, each with
    its least period."""
    free = np.ones(len(letters), dtype=bool)
    while (best := _longest_run(letters, free)) is not None:
        free[best.start : best.end] = False
        yield best


def _longest_run(
    letters: np.ndarray[Any, np.dtype[np.int64]], free: np.ndarray[Any, np.dtype[np.bool_]]
) -> _Run | None:
    best: _Run | None = None
    for period in range(LEAST_OPERATORS, len(letters) // 2 + 1):
        alike = (letters[period:] == letters[:-period]) & free[period:] & free[:-period]
        start, length = _longest_stretch(alike)
        run = _Run(start, period, length // period + 1)
        if run.count > 1 and (best is None or run.covered > best.covered):
            best = run
    return best


def _longest_stretch(flags: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[int, int]:
    """Return where the longest stretch of true flags starts, and its length."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(edges[2 * longest]), int(lengths[longest])


def _joined(graph: Graph, body: Sequence[Node], forward: _Run, backward: _Run) -> RepeatedBlock | None:
    """Return the repeat whose blocks are a stretch of each run, None if the two do not belong together."""
    where = {body[index].name: number for number in range(forward.count) for index in forward.stretch(number)}
    reads = Counter(
        number + where[ref.node]
        for number in range(backward.count)
        for index in backward.stretch(number)
        for ref in body[index].inputs
        if ref.node in where
    )
    for total, _ in reads.most_common(3):
        numbers = [n for n in range(forward.count) if 0 <= total - n < backward.count]
        blocks = [
            [body[index].name for run, n in ((forward, number), (backward, total - number)) for index in run.stretch(n)]
            for number in numbers
        ]
        blocks = _with_feeders(graph, blocks)
        if len(blocks) > 1 and _alike(graph, blocks):
            return RepeatedBlock(occurrences=tuple(map(tuple, _with_leaves(graph, blocks))))
    return None


def _with_feeders(graph: Graph, blocks: list[list[str]]) -> list[list[str]]:
    """Return the blocks, each after the operators outside that it alone reads, in the order of execution: the slice of
    a sequence that a step of a loop takes. What not all blocks have belongs to none."""
    place: dict[str, tuple[int, Any]] = {
        name: (number, index) for number, block in enumerate(blocks) for index, name in enumerate(block)
    }
    nodes = graph.by_name()
    readers: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for node in graph.nodes:
        for slot, ref in enumerate(node.inputs):
            readers[ref.node].append((node.name, slot))
    kept = {ref.node for table in (graph.gradients, graph.buffer_updates) for ref in table.values()}
    feeders: list[dict[Any, str]] = [{} for _ in blocks]
    for node in reversed(graph.nodes):
        read = readers[node.name]
        fed = {place[name][0] if name in place else -1 for name, _ in read}
        if node.name not in place and node.inputs and node.name not in kept and len(fed) == 1 and min(fed) >= 0:
            name, slot = read[0]
            where = ("feeder", place[name][1], slot, node.op, node.outputs)
            place[node.name] = (min(fed), where)
            feeders[min(fed)][where] = node.name
    common = [where for where in reversed(feeders[-1]) if all(where in feeder for feeder in feeders)]
    order = {node: number for number, node in enumerate(nodes)}
    return [
        [*sorted((feeder[where] for where in common), key=lambda name: order[name]), *block]
        for feeder, block in zip(feeders, blocks, strict=True)
    ]


def _alike(graph: Graph, blocks: Sequence[Sequence[str]]) -> bool:
    """Return whether neighbouring blocks are wired alike. The first and the last may read from outside what the others
    read from their neighbours."""
    nodes = graph.by_name()
    place = {name: (number, index) for number, block in enumerate(blocks) for index, name in enumerate(block)}
    place |= _leaves(graph, place)

    def wire(ref: Ref, number: int) -> tuple[Any, ...]:
        if ref.node not in place:
            return "outside", ref
        other, index = place[ref.node]
        return ("beside", other - number, index, ref.output) if abs(other - number) < 2 else ("far",)

    for number, (one, other) in enumerate(pairwise(blocks)):
        edge = number == 0 or number == len(blocks) - 2
        for first, second in zip(one, other, strict=True):
            for a, b in zip(nodes[first].inputs, nodes[second].inputs, strict=True):
                left, right = wire(a, number), wire(b, number + 1)
                crossing = {left[0], right[0]} == {"outside", "beside"}
                if (left != right and not (edge and crossing)) or left == ("far",):
                    return False
    return True


def _leaves(graph: Graph, place: dict[str, tuple[int, Any]]) -> dict[str, tuple[int, Any]]:
    """Return the block of each parameter and buffer that a block is the first to read, and where in it that is; without
    those that blocks share which are no neighbours."""
    ends: dict[str, tuple[int, Any]] = {}
    readers: dict[str, set[int]] = defaultdict(set)
    leaves = {ref.node for ref in (*graph.parameters.values(), *graph.buffers.values())}
    for node in graph.nodes:
        number, index = place.get(node.name, (-1, 0))
        for slot, ref in enumerate(node.inputs):
            if ref.node in leaves:
                ends.setdefault(ref.node, (number, ("leaf", index, slot)))
                readers[ref.node].add(number)
    return {
        name: (number, where)
        for name, (number, where) in ends.items()
        if number >= 0 and all(abs(reader - number) < 2 or reader < 0 for reader in readers[name])
    }


def _with_leaves(graph: Graph, blocks: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the blocks, each after the parameters and buffers that it is the first to read, in the order of reading.

    What not all blocks have belongs to none.
    """
    place = {name: (number, index) for number, block in enumerate(blocks) for index, name in enumerate(block)}
    leaves_of: list[dict[Any, str]] = [{} for _ in blocks]
    for name, (number, where) in _leaves(graph, place).items():
        leaves_of[number][where] = name
    common = [where for where in leaves_of[0] if all(where in block_leaves for block_leaves in leaves_of)]
    return [
        [*(block_leaves[where] for where in common), *block]
        for block_leaves, block in zip(leaves_of, blocks, strict=True)
    ]
