"""The account of memory of a whole program, no repeated block taken for another."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats
from shardwright.synthesis.decisions import ParameterState
from shardwright.synthesis.graph import Graph
from shardwright.synthesis.memory import held
from shardwright.synthesis.program import Program


def most_bytes(graph: Graph, program: Program, state: ParameterState) -> Floats:
    """Return the most bytes that each rank holds at a time [ranks]."""
    found = held(graph, program, state, {})
    share = np.array([np.array(program.sizes[cut]) / cut[1] for cut in found.cuts]).reshape(-1, program.ranks)
    return np.asarray(found.at(share).max(axis=0))
