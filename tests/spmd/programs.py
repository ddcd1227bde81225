"""The program in which every rank computes everything, and what ranks store under any."""

from __future__ import annotations

import math

from shardwright.synthesis.graph import REPLICATED, Graph, local_shape
from shardwright.synthesis.program import Program, Step


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


def stored_bytes(graph: Graph, program: Program) -> list[int]:
    """Return the bytes of fp32 parameters that each rank stores."""
    shapes = {node.name: node.outputs[0].shape for node in graph.nodes if node.op == "parameter"}
    return [
        sum(4 * math.prod(local_shape(shape, program.steps[name].outputs[0], program.sizes, rank))
            for name, shape in shapes.items())
        for rank in range(program.ranks)
    ]  # fmt: skip
