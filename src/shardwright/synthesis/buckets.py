"""Which gradients are all-reduced in one call: those that one block makes, up to `BUCKET_BYTES`.

A call takes its latency however little it sends, and a block has many small gradients: of biases and norms.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence

from shardwright.synthesis.graph import Graph, Ref
from shardwright.synthesis.program import Communication
from shardwright.synthesis.properties import Partial, Property, Replicated

BUCKET_BYTES = 25e6  # at which a call is full, as in PyTorch's DistributedDataParallel


def joined(source: Property, target: Property) -> bool:
    """Return whether what waits for the end of the step is sent with others."""
    return isinstance(source, Partial) and isinstance(target, Replicated)


def bucket_bytes(graph: Graph) -> list[float]:
    """Return for each node the bytes of a call if all gradients of its block, or all that are made outside of blocks,
    are sent together."""
    block, nodes, total = _blocks(graph), graph.by_name(), Counter[int]()
    for ref in graph.gradients.values():
        total[block.get(ref.node, -1)] += nodes[ref.node].outputs[ref.output].size_bytes
    return [min(BUCKET_BYTES, float(total[block.get(node.name, -1)])) for node in graph.nodes]


def calls(graph: Graph, ready: Mapping[str, Sequence[Communication]]) -> dict[str, list[tuple[Communication, ...]]]:
    """Return the calls that start after each node, for what is `ready` after each."""
    block, last = _blocks(graph), -1
    values = {Ref(node.name, number): one for node in graph.nodes for number, one in enumerate(node.outputs)}
    found: list[list[tuple[str, Communication]]] = []
    filling: dict[Hashable, list[tuple[str, Communication]]] = {}
    for node in graph.nodes:
        last = block.get(node.name, last)
        for one in ready.get(node.name, ()):
            together = one.deferred and joined(one.source, one.target)
            kind = (one.method, values[one.tensor].dtype, last, node.name in block) if together else one
            call = filling.get(kind, [])
            if not call or sum(values[each.tensor].size_bytes for _, each in call) >= BUCKET_BYTES:
                call = filling[kind] = []
                found.append(call)
            call.append((node.name, one))
    starting: dict[str, list[tuple[Communication, ...]]] = defaultdict(list)
    for call in found:
        starting[call[-1][0]].append(tuple(one for _, one in call))
    return starting


def _blocks(graph: Graph) -> dict[str, int]:
    """Return the number of the block of each node that is in one."""
    blocks = [block for repeat in graph.repeats for block in repeat.occurrences]
    return {name: number for number, block in enumerate(blocks) for name in block}
