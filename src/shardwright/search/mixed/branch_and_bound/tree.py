"""Branch and bound, best bound first: the one loop of the searches by time, by dollars and over numbers of machines.

A node is a part of the plans with a lower bound of what is minimised. A search says what becomes of the open node of
least bound; the loop keeps the open nodes and what is proven of all of them together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import numpy as np

from shardwright.progress import stopped, tell
from shardwright.records import record

Part = TypeVar("Part")


@record(kw_only=False)
class TreeNode(Generic[Part]):
    """A part of the plans that takes `bound` or more. `proven` is the least bound of all that is left of the tree."""

    bound: float
    part: Part
    proven: float


@record(kw_only=False)
class Rebounded(Generic[Part]):
    """The node stays open with a bound of its own: another one may come first now."""

    bound: float
    part: Part


@record(kw_only=False)
class Branched(Generic[Part]):
    """Parts with their bounds take the place of the node."""

    parts: Iterable[tuple[float, Part]]


@record(kw_only=False)
class Pruned:
    """Nothing in the node is below the cutoff."""


@record(kw_only=False)
class Undecided:
    """The node is not looked into any further, so no more than its bound is proven."""

    bound: float


Step = Rebounded[Part] | Branched[Part] | Pruned | Undecided


def least_bound(
    roots: Iterable[tuple[float, Part]],
    process: Callable[[TreeNode[Part]], Step[Part]],
    *,
    cutoff: Callable[[], float],
    spent: Callable[[int], float],
) -> float:
    """Process the open node of least bound until none is below the `cutoff`, which incumbents found on the way may
    lower, until the effort is spent (of it `spent`, told how many were processed, returns the part, up to 1), or until
    whoever asks has had enough. Return what no plan of the tree is below, the cutoff at most."""
    nodes = [(bound, order, part) for order, (bound, part) in enumerate(roots)]
    heapq.heapify(nodes)
    undecided, processed, last = np.inf, 0, len(nodes)
    while nodes and nodes[0][0] < cutoff() and (share := spent(processed)) < 1.0 and not stopped():
        tell(share)
        bound, order, part = heapq.heappop(nodes)
        processed += 1
        step = process(TreeNode(bound, part, min(bound, undecided)))
        match step:
            case Rebounded():
                heapq.heappush(nodes, (step.bound, order, step.part))
            case Branched():
                for low, piece in step.parts:
                    last += 1
                    heapq.heappush(nodes, (low, last, piece))
            case Undecided():
                undecided = min(undecided, step.bound)
            case Pruned():
                pass
    return min([undecided, cutoff(), *(bound for bound, _, _ in nodes)])
