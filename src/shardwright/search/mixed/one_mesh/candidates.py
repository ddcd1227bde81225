"""Compositions that equal replicas may have, with what no plan of each beats."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Ints, picked
from shardwright.rounding import weighed
from shardwright.search.mixed.bounds.compositions import Compositions, columns, least_seconds
from shardwright.search.mixed.bounds.instance import Instance
from shardwright.search.mixed.subproblem.exact import ANY, least_by_splits
from shardwright.search.mixed.tables.region import Region, sites_of
from shardwright.search.space.axes import Space, divisors

ROUNDED = 1e-5  # part by which a bisection may end above the bound


@dataclass(frozen=True, slots=True)
class Candidate:
    """`copies` replicas with `counts` stages of each type, which take `seconds` or more."""

    seconds: float
    instance: Instance
    counts: tuple[int, ...]
    copies: int

    @property
    def micro_batches(self) -> int:
        """Micro-batches of each replica."""
        return self.instance.total // self.copies


def candidates(instance: Instance, space: Space, incumbent: float, copies: int) -> list[Candidate]:
    """Return the ways of an instance to have `copies` equal replicas over several types that may take less than
    `incumbent` seconds, best first."""
    if instance.quick >= incumbent:
        return []
    counts = instance.compositions(space)
    counts = picked(counts, (counts > 0).sum(axis=1) > 1)
    found = _of_copies(instance, counts, copies, incumbent)
    return [Candidate(seconds, instance, tuple(row), copies) for seconds, row in sorted(found)]


def numbers_of_copies(instance: Instance, space: Space) -> list[int]:
    """Return how many equal replicas an instance may have, fewest first: each takes as many micro-batches."""
    numbers = divisors(instance.total, int(instance.table.units.sum()) // 2)
    return [int(copies) for copies in space.allowed("dp", numbers)]


def by_all_splits(way: Candidate, longest: float, bottleneck: tuple[float, float] = ANY) -> Candidate:
    """Return a candidate with what all of its splits take at least, as far as that is below `longest` seconds: those
    whose longest stage takes `bottleneck` seconds (from, to). Every replica has all of its types, so that links, and
    how often a micro-batch crosses sites, are known."""
    counts, table = np.array([way.counts]), way.instance.table
    used = tuple(np.flatnonzero(counts[0]).tolist())
    region = replace(
        _region(way.instance, way.copies),
        link=float(table.links[list(used)].max()),
        used=used,
        gpus=way.copies * int(counts[0] @ np.array(way.instance.setting.tp)),
        crossings=len(sites_of(table, used)) - 1,
    )
    short = replace(way.instance, depth=int(counts.sum()), known={})
    found = _columns(short, counts, region, way.micro_batches, longest)
    least = longest
    if len(found.stages):
        size = np.array([way.micro_batches])
        least = float(least_by_splits(short.table, short.layers, region, found, size, longest, bottleneck)[0])
    return replace(way, seconds=max(way.seconds, min(least, longest)))


def _of_copies(instance: Instance, counts: Ints, copies: int, incumbent: float) -> list[tuple[float, list[int]]]:
    units, micro_batches = instance.table.units, instance.total // copies
    speeds = weighed(counts, instance.speeds / np.maximum(units, 1))
    quick = micro_batches * instance.layers.total / np.maximum(speeds, 1e-300)
    counts = picked(counts, (counts * copies <= units).all(axis=1) & (quick < incumbent))
    if not len(counts):
        return []
    short = replace(instance, depth=int(counts.sum(axis=1).max()), known={})
    found = _columns(short, counts, _region(short, copies), micro_batches, incumbent)
    seconds = least_seconds(found, np.full(len(found.stages), micro_batches), instance.quick, incumbent)
    possible = np.flatnonzero(np.isfinite(seconds))
    return list(zip(((1.0 - ROUNDED) * seconds[possible]).tolist(), found.counts[possible].tolist(), strict=True))


def _columns(instance: Instance, counts: Ints, region: Region, micro_batches: int, longest: float) -> Compositions:
    """Return what bounds compositions; pipelines deeper than their micro-batches are bounded apart."""
    deeper = counts.sum(axis=1) > micro_batches
    parts = [
        columns(instance.table, instance.layers, instance.capacity(region, longest, few=few), some, region, few=few)
        for few, some in ((False, picked(counts, ~deeper)), (True, picked(counts, deeper)))
        if len(some)
    ]
    return Compositions.concatenated(parts)


def _region(instance: Instance, copies: int) -> Region:
    return Region(fewest=copies, most=copies, modes=instance.modes, link=np.inf, used=())
