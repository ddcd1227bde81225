"""In which ways the stages of a replica may stand in machines or other domains, as far as bounds can tell them apart.

Neighbours in a pipeline send each other messages at the speed of a domain only where they share one, and copies of a
layer reduce its gradients at that speed only where these do. A domain of L units cannot give all its units to both. By
the rank order (`plans.placement`) the stages of a replica on one type are

* in a row: L of them fill a domain, in which no other replica has a unit then. The first and the last of its domains
  may have fewer, l of them; L - l units are left for copies;
* or every n-th unit, where n copies of a replica have their stages together. Of n + 1 messages that follow each other
  some n / L at least leave a domain.

A single replica stands in a row that begins in a domain of its own. Where all replicas are alike, on several types, the
rank order says where each of their stages stands.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shardwright.arrays import Bools, Ints
from shardwright.records import record
from shardwright.search.mixed.tables.columns import Table
from shardwright.search.mixed.tables.region import Region

MOST_WAYS = 24  # of one order of the types; of more, those of the last types are not told apart
ANY = 1 << 30  # copies in a domain, where nothing limits them

Way = tuple[tuple[bool, ...], tuple[int, ...]]  # whether the message after each stage leaves; copies of its layers
NO_WAY: Way = ((), ())  # nothing is said of any stage


@record
class Standings:
    """R ways, each with one for each type, `way` [R, G]: `leaves` [G, W, S] says whether the message from the s-th
    stage on a type to the next one leaves its domain, `crowd` [G, W, S] how many copies of its layers it may have."""

    way: Ints
    leaves: Bools
    crowd: Ints

    def of(self, rows: Ints, kinds: Ints, place: Ints) -> tuple[Bools, Ints]:
        """Return both of stages [N, P] of the types `kinds`, in the ways `rows` [N], each at its `place` among those of
        its type."""
        at = kinds, np.take_along_axis(self.way[rows], kinds, axis=1), place
        return self.leaves[at], self.crowd[at]


def standings(table: Table, region: Region, counts: Ints) -> tuple[Ints, Standings]:
    """Return the ways in which replicas of so many stages on each type, `counts` [N, G], may stand in a plan of a
    region, and which replica each is of, [R]. Types on which it matters most come first where ways are too many."""
    row, way = np.arange(len(counts)), np.zeros_like(counts)
    left, of_types = np.full(len(counts), MOST_WAYS), [[NO_WAY] for _ in range(counts.shape[1])]
    for kind in np.argsort(table.near - table.far, kind="stable").tolist():
        first, many = np.zeros(len(row), dtype=np.int64), np.ones(len(row), dtype=np.int64)
        for count in np.unique(counts[:, kind]).tolist():
            period = int(table.period[kind])
            some = ways_of_alike(count, period, region.most) if region.alike else ways_of(count, period, region.most)
            fits = (counts[row, kind] == count) & (len(some) <= left)
            first[fits], many[fits] = len(of_types[kind]), len(some)
            of_types[kind] += some
        place = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
        row, way, left, first = (np.repeat(part, many, axis=0) for part in (row, way, left // many, first))
        way[:, kind] = first + place
    shape = (counts.shape[1], max(map(len, of_types)), max(int(counts.max()), 1))
    leaves, crowd = np.zeros(shape, dtype=bool), np.full(shape, ANY)
    for kind, some in enumerate(of_types):
        for number, (out, copies) in enumerate(some):
            leaves[kind, number, : len(out)], crowd[kind, number, : len(copies)] = out, copies
    return row, Standings(way=way, leaves=leaves, crowd=crowd)


@lru_cache(maxsize=4096)
def ways_of(count: int, period: int, most: int) -> list[Way]:
    """Return the ways of `count` stages where `period` of them fill a domain (0: not known), of up to `most` replicas:
    those that leave no others the better of two ways."""
    free = ((False,) * count, (ANY,) * count)
    if count == 0 or period == 0:
        return [free]
    if most == 1:
        return [(_in_a_row(count, period, period)[0], free[1])]
    if count <= period:
        alone = _in_a_row(count, period, count)
        if alone[1][0] >= most:
            return [free]
        return [alone, *(_leaving(count, {first}) for first in range(1, count))]
    rows = [_in_a_row(count, period, first) for first in range(1, period + 1)]
    if period > 2:
        return [(leaves, free[1]) for leaves, _ in rows]
    return [*rows, *([_leaving(count, set(range(count)))] if period == 2 else [])]


@lru_cache(maxsize=4096)
def ways_of_alike(count: int, period: int, copies: int) -> list[Way]:
    """Return the ways of `count` stages of so many `copies` of one replica: with its copies together, stage after
    stage, and with its stages together, copy after copy. Messages are those of the first copy."""
    if count == 0 or period == 0:
        return [((False,) * count, (ANY,) * count)]
    stage, copy = np.indices((count, copies))
    ways = []
    for unit in (stage * copies + copy, copy * count + stage):
        domain = unit // period
        leaves = np.append(np.diff(domain[:, 0]) > 0, False)
        fewest = [int(np.unique(row, return_counts=True)[1].min()) for row in domain]
        crowd = [ANY if number == copies else number for number in fewest]
        ways.append((tuple(leaves.tolist()), tuple(crowd)))
    return list(dict.fromkeys(ways))


def _in_a_row(count: int, period: int, first: int) -> Way:
    """Return the way of stages in a row of which the `first` ones share a domain."""
    domain = (np.arange(count) - first) // period
    leaves = np.append(np.diff(domain) > 0, False)
    copies = period - np.bincount(domain + 1)[domain + 1] + 1
    return tuple(leaves.tolist()), tuple(copies.tolist())


def _leaving(count: int, places: set[int]) -> Way:
    """Return a way in which the message after the first, second … stage leaves where that number is among `places`."""
    return tuple(place + 1 in places for place in range(count)), (ANY,) * count
