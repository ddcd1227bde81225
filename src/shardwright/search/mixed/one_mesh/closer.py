"""What is proven of candidates whose plans are above their bound: their splits by how long the longest stage takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardwright.rounding import coarse
from shardwright.search.mixed.branch_and_bound.tree import Branched, Step, TreeNode, Undecided, least_bound
from shardwright.search.mixed.one_mesh.candidates import Candidate, by_all_splits
from shardwright.search.mixed.one_mesh.worth import Worth

HALVED = 48  # ranges that are halved, at most
NARROW = 1.005  # a range is not halved any more whose longest stages are so many times its shortest ones, at most


@dataclass(frozen=True, slots=True)
class _Range:
    """The splits of a candidate whose longest stage takes `shortest` to `longest` seconds: zero and infinity where that
    excludes none."""

    way: Candidate
    shortest: float = 0.0
    longest: float = np.inf


def bound_by_ranges(
    undecided: Sequence[tuple[float, Candidate]], worth: Worth, incumbent: float, cutoff: float
) -> float:
    """Return what no plan of candidates is below, each of which has a bound already, the `cutoff` at most: all in what
    the job minimises, as `incumbent`."""
    return least_bound(
        [(least, _Range(way)) for least, way in undecided],
        partial(_halved, worth, worth.longest(incumbent)),
        cutoff=lambda: cutoff,
        spent=lambda halved: halved / HALVED,
    )


def _halved(worth: Worth, seconds: float, node: TreeNode[_Range]) -> Step[_Range]:
    """Bound both halves of a range, for plans that take less than `seconds`."""
    way, part = node.part.way, node.part
    low, high = part.shortest or _even(way), min(part.longest, seconds / way.micro_batches)
    if high <= NARROW * low:
        return Undecided(node.bound)
    middle = coarse(float(np.sqrt(low * high)))
    halves = [_Range(way, part.shortest, middle), _Range(way, middle, part.longest)]
    closer = [by_all_splits(way, seconds, (each.shortest, each.longest)) for each in halves]
    bounds = [max(node.bound, coarse(worth.least(one))) for one in closer]
    return Branched(list(zip(bounds, halves, strict=True)))


def _even(way: Candidate) -> float:
    """Return about the seconds of every stage where all take as long."""
    layers = way.instance.layers
    return float(layers.total / (np.array(way.counts) / layers.seconds).sum())
