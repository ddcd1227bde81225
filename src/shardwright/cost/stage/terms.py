"""The terms of the memory that passes need, one row each, and the modes of recomputation as values.

A layer is in one of three states until its backward pass: nothing of it runs again (`WHOLE`), modules of it do
(`LEAN`), or all of it does (`AGAIN`). A mode says in which state the first `recompute_layers` layers of a stage are,
and in which the others. A term says how often its bytes count for a layer in each state: kept for each micro-batch in
flight, and live beside that while the largest layer runs backward. So a new term is a row of `TERMS` and the figure
that it names; nothing that reads states (`exact`, `relaxed`) knows of terms.

The embedding and the head never run again: their figures are alike in all states.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.memory.activations import Activations
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, UNIFORM

WHOLE, LEAN, AGAIN = range(3)  # numeric
STATES = 3  # numeric


class Term(NamedTuple):
    """How often bytes count for a layer in the states `WHOLE`, `LEAN` and `AGAIN`. `figure` is a field of
    `Activations`; `live` counts the largest layer, with `together` each of the layers that run again as a group."""

    figure: str
    kept: tuple[int, int, int] = (0, 0, 0)
    live: tuple[int, int, int] = (0, 0, 0)
    together: bool = False


TERMS = (  # documented in `cost.memory.activations`, figure by figure
    Term("kept", kept=(1, 1, 0), live=(0, 0, 1), together=True),
    Term("core", kept=(0, -1, 0)),
    Term("again", live=(0, 1, 0)),
    Term("inputs", kept=(0, 0, 1)),
    Term("offloaded", kept=(0, 0, -1), live=(0, 0, 2)),  # one travels each way
    Term("gradients", live=(1, 1, 1)),
    Term("dequantised", live=(1, 1, 1)),
)


class Mode(NamedTuple):
    """The states of the `first` recomputed layers of a stage and of the `rest`; with `grouped`, all layers run again in
    groups of as many, and what the first of each keeps serves all of it."""

    first: int
    rest: int
    grouped: bool = False


MODES = {
    NONE: Mode(WHOLE, WHOLE),
    SELECTIVE: Mode(LEAN, LEAN),
    UNIFORM: Mode(AGAIN, AGAIN, grouped=True),
    BLOCK: Mode(AGAIN, WHOLE),
}
FIRST, REST, GROUPED = map(np.array, zip(*(MODES[code] for code in sorted(MODES)), strict=True))  # numeric


def kept_by_state(figures: Activations) -> list[Floats]:
    """Return the bytes that each position keeps of a micro-batch in each state, [M, 3] for each."""
    return [
        np.stack([_counted(figures, position, [term.kept[state] for term in TERMS]) for state in range(STATES)], axis=1)
        for position in range(len(figures.kept))
    ]


def live_by_state(figures: Activations) -> tuple[Floats, Floats]:
    """Return the bytes that live while the largest layer in each state runs backward, [M, 3], and those of each layer
    of a group that runs again together, [M]."""
    alone = [
        sum(_largest(figures, term) * term.live[state] for term in TERMS if not term.together) for state in (0, 1, 2)
    ]
    group = sum(_largest(figures, term) * term.live[AGAIN] for term in TERMS if term.together)
    return np.stack(alone, axis=1), np.asarray(group)


def _counted(figures: Activations, position: int, counts: list[int]) -> Floats:
    total = np.zeros_like(figures.kept[0])
    for term, count in zip(TERMS, counts, strict=True):
        if count:
            total = total + count * getattr(figures, term.figure)[position]
    return np.asarray(total)


def _largest(figures: Activations, term: Term) -> Floats:
    return np.asarray(np.max(np.stack(getattr(figures, term.figure)[1:-1]), axis=0))
