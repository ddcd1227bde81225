"""The least dollars of an iteration on any number of machines, by the program over compositions with a row for money.

A plan that takes T and costs G has x_c replicas of compositions c with T sum(x_c q c) <= G, where q are the dollars for
a second of a unit. By the bounds, the micro-batches m_c(T) of a replica grow with T at least in proportion, so in a
longer time T' as little as x_c T / T' replicas do as much for as much money. One program, at the longest time, bounds
the dollars of plans of all times. It counts parts of replicas and of machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.rounding import coarse, weighed
from shardwright.search.mixed.bounds.compositions import Compositions, alone, columns
from shardwright.search.mixed.bounds.instance import Instance
from shardwright.search.mixed.branch_and_bound.effort import spent_of
from shardwright.search.mixed.branch_and_bound.tree import Branched, Pruned, Step, TreeNode, Undecided, least_bound
from shardwright.search.mixed.dollars.screen import fast_enough
from shardwright.search.mixed.master.program import CLOSE
from shardwright.search.mixed.master.regions import parts
from shardwright.search.mixed.master.relaxation import relaxation
from shardwright.search.mixed.tables.region import Region, usable
from shardwright.search.space.axes import Space

MORE = 250  # compositions that are listed at a time
STEP = 2e-3  # of the bound of a region, less than which does not count
MOST_STEPS = 60


@dataclass(frozen=True, slots=True)
class Start:
    """A region of an instance with the dollars for a second of a unit, [G]."""

    each: Instance
    region: Region
    per_unit: Floats


def least_dollars(starts: Sequence[Start], space: Space, cutoff: float, longest: float, most_regions: int) -> float:
    """(P9) Return dollars, `cutoff` at most, that no plan of the regions costs less than and takes `longest` seconds or
    less."""

    def processed(node: TreeNode[Start]) -> Step[Start]:
        start, dollars = node.part, _least_of(node, space, cutoff, longest)
        if dollars >= cutoff:
            return Pruned()
        split = parts(start.each, start.region, longest)
        return Branched([(dollars, replace(start, region=part)) for part in split]) if split else Undecided(dollars)

    return least_bound(
        [(_quick(start), start) for start in starts],
        processed,
        cutoff=lambda: cutoff,
        spent=lambda processed: spent_of(processed, most_regions),
    )


def _quick(start: Start) -> float:
    each = start.each
    there = each.table.units > 0
    speeds = each.speeds[there] / each.table.units[there]
    return coarse(each.total * each.layers.total * float((start.per_unit[there] / speeds).min()))


def _least_of(node: TreeNode[Start], space: Space, cutoff: float, seconds: float) -> float:
    """Return the dollars that no plan of a region costs less than."""
    each, region, per_unit = node.part.each, node.part.region, node.part.per_unit
    rest = each.compositions(space)
    rest = rest[usable(each.table, rest, region)]
    found = _listed(each, region, alone(each.table, each.layers, region), rest[each.samples(rest)])
    rest = rest[~each.samples(rest)]
    units = np.append(each.table.units, region.most).astype(np.float64)
    dollars = node.bound
    for _ in range(MOST_STEPS):
        rows = np.column_stack([found.counts, np.ones(len(found.counts)), weighed(found.counts, per_unit)])
        program = relaxation(rows, np.append(units, dollars / seconds))
        relaxed = program.optimum(steady_micro_batches(found, seconds, each.total))
        reached, prices = relaxed.value, relaxed.prices
        if reached >= each.total - CLOSE:
            break
        cost = weighed(rest, prices[:-2]) + prices[-2] + weighed(rest, per_unit) * prices[-1]
        with np.errstate(divide="ignore"):
            faster = fast_enough(each, region, rest, np.minimum(seconds / cost, seconds), seconds)
        if len(faster):
            faster = faster[np.argsort(coarse(cost[faster]), kind="stable")[:MORE]]
            found = _listed(each, region, found, rest[faster])
            rest = np.delete(rest, faster, axis=0)
            continue
        # The tangent at the money there is bounds what more of it can do.
        missing = (each.total - reached) * seconds
        more = dollars + missing / prices[-1] if prices[-1] * (cutoff - dollars) > missing else cutoff
        if more >= cutoff or more < dollars * (1.0 + STEP):
            return more
        dollars = coarse(more)
    return dollars


def _listed(instance: Instance, region: Region, found: Compositions, counts: Ints) -> Compositions:
    """Return columns with those of more compositions: with as many micro-batches as stages or more, and with fewer."""
    table, layers = instance.table, instance.layers
    more = [
        columns(table, layers, instance.capacity(region, np.inf, few=few), counts, region, few=few, ordered=False)
        for few in (False, True)
        if len(counts)
    ]
    return Compositions.concatenated([found, *more])


def steady_micro_batches(found: Compositions, seconds: float, total: int) -> Floats:
    """Return `seconds` times the most micro-batches a second that a replica of each composition does in this time or
    less, [N]: as many at a time as it can finish, and no more than `total`."""
    tau, work, later, t = found.bottleneck, found.work, found.after, seconds - found.after
    stages, most = found.stages[:, None].astype(np.float64), np.minimum(found.most, total)[:, None].astype(np.float64)
    beside = (1.0 - found.share)[:, None] * tau
    with np.errstate(invalid="ignore"):
        many = np.minimum(np.minimum(1.0 + (t - found.first) / tau, t / tau), 1.0 + stages * (t / work - 1.0))
        many = np.floor(np.minimum(many, most) + CLOSE)
        end = np.maximum(found.first + (many - 1.0) * tau, np.maximum(many * tau, work * (1.0 + (many - 1.0) / stages)))
        few = np.floor(np.minimum(np.minimum(1.0 + (t - work) / beside, t / tau), np.minimum(stages, most)) + CLOSE)
        few_end = np.maximum(work + (few - 1.0) * beside, few * tau)
        rates = [
            np.where((many > stages) | ((stages == 1.0) & (many > 0.0)), many / (later + end), 0.0),
            np.where(few > 0.0, few / (later + few_end), 0.0),
        ]
    return np.asarray(seconds * np.nan_to_num(np.maximum(*rates)).max(axis=1))
