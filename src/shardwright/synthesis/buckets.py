"""What is sent in one call: the parameters that a block gathers for a pass, the gradients that it makes.

A call takes its latency however little it sends, and a block has many small tensors, such as biases and norms. It is
full at `BUCKET_BYTES`; with parts of sharded parameters, which are there to spare memory, at the size of the largest
parameter, for which there is room anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shardwright.synthesis.graph import Graph, Ref
from shardwright.synthesis.program import Communication
from shardwright.synthesis.properties import Partial, Property, Replicated, Sharded

BUCKET_BYTES = 25e6  # at which a call is full, as in PyTorch's DistributedDataParallel
Stretch: TypeAlias = tuple[bool, int, bool]
"""Whether nodes run from the loss on, which block began last, and whether they are in it."""
Call: TypeAlias = list[tuple[str, Communication]]
"""What goes in one call, each with the node that reads it first or makes it."""


def joined(source: Property, target: Property) -> bool:
    """Return whether what goes early or late is sent with others: parts that all gather, sums, shared out or not."""
    gathered = isinstance(source, Sharded) and isinstance(target, Replicated)
    return gathered or (isinstance(source, Partial) and not isinstance(target, Partial))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSizes:
    """The bytes of all leaves that a stretch of nodes is the first in its pass to read, of all gradients that it makes,
    and of the largest parameter."""

    stretch: Mapping[str, Stretch]
    read: Mapping[Stretch, float]
    made: Mapping[Stretch, float]
    largest: float

    def of(self, node: str, size_bytes: float, source: Property, target: Property, *, early: bool) -> float:
        """Return the bytes of the call in which a tensor goes that `node` reads first (`early`) or makes, if all go
        that may."""
        if not joined(source, target):
            return size_bytes
        total = (self.read if early else self.made)[self.stretch[node]]
        most = min(BUCKET_BYTES, self.largest) if _sharded(source, target) else BUCKET_BYTES
        return max(size_bytes, min(most, total))

    def full(self, filled: float, size_bytes: float, source: Property, target: Property) -> bool:
        """Return whether a call with `filled` bytes takes no more, or none of that size."""
        if _sharded(source, target):
            return filled + size_bytes > min(BUCKET_BYTES, self.largest)
        return filled >= BUCKET_BYTES


def call_sizes(graph: Graph) -> CallSizes:
    """Return what may go together."""
    stretch, nodes = _stretches(graph), graph.by_name()
    read, made = Counter[Stretch](), Counter[Stretch]()
    for ref, where in _first_read(graph, stretch):
        read[where] += nodes[ref.node].outputs[0].size_bytes
    for ref in graph.gradients.values():
        made[stretch[ref.node]] += nodes[ref.node].outputs[ref.output].size_bytes
    largest = max((nodes[ref.node].outputs[0].size_bytes for ref in graph.parameters.values()), default=0)
    return CallSizes(stretch=stretch, read=read, made=made, largest=float(largest))


def calls(graph: Graph, ready: Mapping[str, Sequence[Communication]], *, early: bool) -> list[Call]:
    """Return the calls in which all is sent that nodes ask for (`early`) or have ready, in the order of their first."""
    sizes = call_sizes(graph)
    values = {Ref(node.name, number): one for node in graph.nodes for number, one in enumerate(node.outputs)}
    found: list[Call] = []
    filling: dict[Hashable, Call] = {}
    for node in graph.nodes:
        for one in ready.get(node.name, ()):
            dtype = values[one.tensor].dtype
            apart = dtype == "bool" or not joined(one.source, one.target)
            together = not apart and (one.early if early else one.deferred)
            kind = (one.method, dtype, sizes.stretch[node.name]) if together else (one, node.name)
            call = filling.get(kind, [])
            filled = float(sum(values[each.tensor].size_bytes for _, each in call))
            if not call or sizes.full(filled, values[one.tensor].size_bytes, one.source, one.target):
                call = filling[kind] = []
                found.append(call)
            call.append((node.name, one))
    return found


def _sharded(source: Property, target: Property) -> bool:
    return isinstance(source, Sharded) or isinstance(target, Sharded)


def _stretches(graph: Graph) -> dict[str, Stretch]:
    blocks = [block for repeat in graph.repeats for block in repeat.occurrences]
    number = {name: place for place, block in enumerate(blocks) for name in block}
    found, last, back = {}, -1, False
    for node in graph.nodes:
        last, back = number.get(node.name, last), back or node.name == graph.loss.node
        found[node.name] = (back, last, node.name in number)
    return found


def _first_read(graph: Graph, stretch: Mapping[str, Stretch]) -> set[tuple[Ref, Stretch]]:
    """Return the leaves with the stretches that read them first in the forward and in the backward."""
    leaves = {*graph.parameters.values(), *graph.buffers.values()}
    first = {
        (ref, stretch[node.name][0]): stretch[node.name]
        for node in reversed(graph.nodes)
        for ref in node.inputs
        if ref in leaves
    }
    return {(ref, where) for (ref, _), where in first.items()}
