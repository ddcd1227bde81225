"""Plans made before and after the tree: of the settings that look best by a few compositions, and of replicas of one
type each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from shardwright.arrays import Ints, picked
from shardwright.progress import stopped
from shardwright.search.mixed.bounds.instance import Instance
from shardwright.search.mixed.branch_and_bound.run import FEW_UNITS, Run, attempted, has_few_units
from shardwright.search.mixed.heuristics.attempts import Drafter
from shardwright.search.mixed.heuristics.simple_plans import side_by_side
from shardwright.search.mixed.master.column_pool import ColumnPool
from shardwright.search.mixed.master.regions import shortest
from shardwright.search.mixed.tables.region import Region, usable
from shardwright.search.space.axes import Space

SCOUTED = 3  # settings of which plans are made at once
LESS_GOOD = 1.02  # times the best by a few compositions, beyond which a setting is not scouted


def scouted(
    run: Run, drafters: Sequence[Drafter], regions: Callable[[Instance, Space], list[Region]]
) -> Iterator[tuple[Drafter, Region]]:
    """Make plans of those `regions` of the settings that look best by a few compositions, so that the search goes on
    with good ones. Yield these regions."""
    seen: list[tuple[float, int, Region, ColumnPool]] = []
    least: dict[tuple[int, tuple[int, ...]], float] = {}
    for place, by in enumerate(drafters):
        if stopped():
            break
        instance = by.instance
        counts: Ints | None = None
        for region in regions(instance, run.problem.space):
            kind = (region.fewest, region.used)
            high = min(run.incumbent, LESS_GOOD * least.get(kind, np.inf))
            if instance.quickest(region) >= min(high, run.target):
                continue
            counts = _sampled(run, instance) if counts is None else counts
            allowed = picked(counts, usable(instance.table, counts, region))
            columns = ColumnPool(instance, region, allowed, run.incumbent, ordered=False)
            if columns.limit(high) >= instance.total:
                seconds, _ = shortest(columns.limit, instance.total, instance.quick, high)
                least[kind] = min(seconds, least.get(kind, np.inf))
                seen.append((seconds, place, region, columns))
    best: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for seconds, place, region, columns in sorted(seen, key=lambda entry: entry[:2]):
        best[region.fewest, region.used] += 1
        if stopped():
            break
        if best[region.fewest, region.used] <= SCOUTED and seconds < run.target:
            attempted(run, drafters[place], region, seconds, columns)
            yield drafters[place], region


def _sampled(run: Run, instance: Instance) -> Ints:
    """Return the compositions to scout with."""
    counts = instance.compositions(run.problem.space)
    return picked(counts, instance.samples(counts))


def whole_setting(instance: Instance, space: Space) -> list[Region]:
    """Return the region of all numbers of replicas, if there is any."""
    return instance.roots(space)[:1]


def numbered(instance: Instance, space: Space) -> list[Region]:
    """Return the regions of so many replicas exactly, on all types and on each, where there are few units."""
    roots, units = instance.roots(space)[:1], instance.table.units
    few = has_few_units(instance) and "dp" not in space.pins
    numbers = [2**power for power in range(FEW_UNITS.bit_length()) if few and roots and 2**power <= roots[0].most]
    whole = [replace(root, fewest=number, most=number) for root in roots for number in numbers]
    pure = [replace(part, used=(kind,)) for part in whole for kind in np.flatnonzero(units >= part.fewest).tolist()]
    return whole + pure


def each_type_alone(run: Run, drafters: Sequence[Drafter]) -> None:
    """Make plans of replicas of one type each, whatever the setting: the tree, which follows the bounds, may have spent
    itself on settings whose bounds are far below their plans."""
    space = run.problem.space
    whole = [(by, region) for by in drafters for region in whole_setting(by.instance, space)]
    open_ones = [(by, region) for by, region in whole if by.instance.quickest(region) < run.cutoff]
    side_by_side(open_ones, space, lambda: run.incumbent, run.incumbents.offer)
