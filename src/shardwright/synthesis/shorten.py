"""A graph with all but three occurrences of each repeated block left out.

The first, a middle and the last occurrence stand for all: what the search decides for one holds for all. What read an
occurrence that is gone reads the middle one (forward) or the last (backward).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.records import record
from shardwright.synthesis.graph import Argument, Graph, Node, Ref, RepeatedBlock

KEPT = 3


@record
class Short:
    """`graph` is the short graph; `weight` says how often each of its nodes occurs, `tie` the name of the node that
    decides for it (itself where it does not repeat)."""

    graph: Graph
    weight: Mapping[str, int]
    tie: Mapping[str, str]


def ties(graph: Graph) -> dict[str, str]:
    """Return for each node of a repeated block the node at its place in the first occurrence."""
    return {
        name: first
        for repeat in graph.repeats
        for block in repeat.occurrences
        for name, first in zip(block, repeat.occurrences[0], strict=True)
    }


def shorten(graph: Graph) -> Short:
    """Return `graph` with at most three occurrences of each block."""
    gone: dict[str, tuple[str, str]] = {}
    last: set[str] = set()
    weight: dict[str, int] = {}
    for repeat in graph.repeats:
        if repeat.count <= KEPT:
            continue
        blocks = repeat.occurrences
        for block in blocks[2:-1]:
            gone.update((name, pair) for name, pair in zip(block, zip(blocks[1], blocks[-1], strict=True), strict=True))
        weight.update(dict.fromkeys(blocks[1], repeat.count - 2))
        last.update(blocks[-1])
    tie = ties(graph)
    nodes = tuple(_moved(node, gone, last) for node in graph.nodes if node.name not in gone)
    names = {node.name for node in nodes}
    return Short(
        graph=replace(
            graph,
            nodes=nodes,
            parameters={name: ref for name, ref in graph.parameters.items() if ref.node in names},
            buffers={name: ref for name, ref in graph.buffers.items() if ref.node in names},
            gradients=_ends(graph.gradients, graph.parameters, gone, last, names),
            buffer_updates=_ends(graph.buffer_updates, graph.buffers, gone, last, names),
            repeats=tuple(_kept(repeat) for repeat in graph.repeats),
        ),
        weight={node.name: weight.get(node.name, 1) for node in nodes},
        tie={node.name: tie.get(node.name, node.name) for node in nodes},
    )


def _kept(repeat: RepeatedBlock) -> RepeatedBlock:
    blocks = repeat.occurrences
    return repeat if repeat.count <= KEPT else RepeatedBlock(occurrences=(blocks[0], blocks[1], blocks[-1]))


def _moved(node: Node, gone: Mapping[str, tuple[str, str]], last: set[str]) -> Node:
    """Return `node` reading kept occurrences only: the last block reads the middle one, all others the last."""
    if not any(ref.node in gone for ref in node.inputs):
        return node

    def moved(argument: Argument) -> Argument:
        if isinstance(argument, Ref):
            return _kept_ref(argument, node.name, gone, last)
        if isinstance(argument, tuple):
            return tuple(moved(part) for part in argument)
        return argument

    return replace(
        node,
        args=tuple(moved(part) for part in node.args),
        kwargs={name: moved(part) for name, part in node.kwargs.items()},
    )


def _kept_ref(ref: Ref, reader: str, gone: Mapping[str, tuple[str, str]], last: set[str]) -> Ref:
    return Ref(gone[ref.node][reader not in last], ref.output) if ref.node in gone else ref


def _ends(
    made: Mapping[str, Ref], leaves: Mapping[str, Ref], gone: Mapping[str, tuple[str, str]], last: set[str],
    names: set[str],
) -> dict[str, Ref]:  # fmt: skip
    """Return what is made for the leaves that are kept: the gradient of a norm after the sum belongs to the block after
    its own."""
    return {
        name: _kept_ref(ref, leaves[name].node, gone, last) for name, ref in made.items() if leaves[name].node in names
    }
