"""The program in which every rank computes everything."""

from __future__ import annotations

from shardwright.synthesis.graph import Graph
from shardwright.synthesis.program import Program, Step
from shardwright.synthesis.properties import REPLICATED


def whole(graph: Graph, ranks: int = 1) -> Program:
    """Return the program in which every rank computes everything."""
    steps = {
        node.name: Step(
            rule="replicated", inputs=(REPLICATED,) * len(node.inputs), outputs=(REPLICATED,) * len(node.outputs)
        )
        for node in graph.nodes
    }
    return Program(
        ranks=ranks, steps=steps, communications=(), shares={}, sizes={("compute", 1): (1,) + (0,) * (ranks - 1)}
    )
