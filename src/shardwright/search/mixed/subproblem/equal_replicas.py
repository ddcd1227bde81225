"""Plans whose replicas are all alike: a setting, a number of copies and one composition, which bounds say most of.

A candidate is bounded by inequalities first, then by all of its splits, then by those whose longest stage takes a range
of seconds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.arrays import Ints, picked
from shardwright.records import record
from shardwright.rounding import coarse, weighed
from shardwright.search.mixed.bounds.compositions import Compositions, columns, least_seconds
from shardwright.search.mixed.bounds.instance import Instance
from shardwright.search.mixed.subproblem.exact import ANY, least_by_splits
from shardwright.search.mixed.tables.region import Region, sites_of
from shardwright.search.space.axes import Space, divisors

ROUNDED = 1e-5  # part by which a bisection may end above the bound
NARROW = 1.005  # a range is not halved any more whose longest stages are so many times its shortest ones, at most


@record(kw_only=False)
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


def candidates(instance: Instance, counts: Ints, copies: int, longest: float) -> list[Candidate]:
    """Return the ways of an instance to have `copies` equal replicas of some compositions `counts`, of two stages or
    more, that may take less than `longest` seconds, best first."""
    if instance.quick >= longest:
        return []
    units, micro_batches = instance.table.units, instance.total // copies
    speeds = weighed(counts, instance.speeds / np.maximum(units, 1))
    quick = micro_batches * instance.layers.total / np.maximum(speeds, 1e-300)
    counts = picked(counts, (counts * copies <= units).all(axis=1) & (quick < longest))
    if not len(counts):
        return []
    short = replace(instance, depth=int(counts.sum(axis=1).max()), known={})
    return _timed(instance, _columns(short, counts, _region(short, copies), micro_batches, longest), copies, longest)


def _timed(instance: Instance, listed: Compositions, copies: int, longest: float) -> list[Candidate]:
    wanted = np.full(len(listed.stages), instance.total // copies)
    seconds = least_seconds(listed, wanted, instance.quick, longest)
    rows = sorted(zip(((1.0 - ROUNDED) * seconds).tolist(), listed.counts.tolist(), strict=True))
    return [Candidate(least, instance, tuple(row), copies) for least, row in rows if np.isfinite(least)]


def numbers_of_copies(instance: Instance, space: Space, stages: int = 2) -> list[int]:
    """Return how many equal replicas of so many `stages` or more an instance may have, fewest first: each takes as many
    micro-batches, and the ranks of a stage, over all of them, divide by those that an expert's weights are spread
    over."""
    numbers, unit = divisors(instance.total, int(instance.table.units.sum()) // stages), instance.table.unit[0]
    ranks = unit.tp * unit.cp
    return [int(copies) for copies in space.allowed("dp", numbers) if copies * ranks % unit.expert_gpus == 0]


def by_all_splits(way: Candidate, longest: float, bottleneck: tuple[float, float] = ANY) -> Candidate:
    """Return a candidate with what all of its splits take at least, as far as that is below `longest` seconds: those
    whose longest stage takes `bottleneck` seconds (from, to). Every replica has all of its types, so that links, and
    how often a micro-batch crosses sites, are known."""
    counts, table = np.array([way.counts]), way.instance.table
    if counts.sum() == 1:
        return way
    used = tuple(np.flatnonzero(counts[0]).tolist())
    region = replace(
        _region(way.instance, way.copies),
        link=float(table.links[list(used)].max()),
        used=used,
        gpus=way.copies * int(counts[0] @ np.array(way.instance.setting.gpus)),
        crossings=len(sites_of(table, used)) - 1,
        alike=len(used) > 1,
    )
    short = replace(way.instance, depth=int(counts.sum()), known={})
    listed = _columns(short, counts, region, way.micro_batches, longest)
    least = longest
    if len(listed.stages):
        size, of = np.array([way.micro_batches]), (short.table, short.layers, region, listed)
        least = float(least_by_splits(*of, size, longest, bottleneck, total=short.total)[0])
    return replace(way, seconds=max(way.seconds, min(least, longest)))


@record(kw_only=False)
class SplitRange:
    """The splits of a candidate whose longest stage takes `shortest` to `longest` seconds, zero and infinity where that
    excludes none; the candidate has their bound."""

    way: Candidate
    shortest: float = 0.0
    longest: float = np.inf


def halves(part: SplitRange, seconds: float) -> list[SplitRange]:
    """Return the halves of a range, for plans that take less than `seconds`: none of a narrow one."""
    way = part.way
    low, high = part.shortest or _even(way), min(part.longest, seconds / way.micro_batches)
    if high <= NARROW * low or sum(way.counts) == 1:
        return []
    middle = coarse(float(np.sqrt(low * high)))
    return [
        SplitRange(by_all_splits(way, seconds, (begin, end)), begin, end)
        for begin, end in ((part.shortest, middle), (middle, part.longest))
    ]


def _even(way: Candidate) -> float:
    """Return about the seconds of every stage where all take as long."""
    layers = way.instance.layers
    return float(layers.total / (np.array(way.counts) / layers.seconds).sum())


def _columns(instance: Instance, counts: Ints, region: Region, micro_batches: int, longest: float) -> Compositions:
    """Return what bounds compositions; pipelines deeper than their micro-batches are bounded apart."""
    deeper = counts.sum(axis=1) > micro_batches
    parts = [
        columns(
            instance.table,
            instance.layers,
            instance.capacity(region, longest / micro_batches, few=few),
            some,
            region,
            few=few,
        )
        for few, some in ((False, picked(counts, ~deeper)), (True, picked(counts, deeper)))
        if len(some)
    ]
    return Compositions.concatenated(parts)


def _region(instance: Instance, copies: int) -> Region:
    return Region(fewest=copies, most=copies, modes=instance.modes, link=np.inf, used=())
