"""Parts of a setting's plans, and which compositions the links of a part allow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from shardwright.cost.strategy import Array, Bools, Ints
from shardwright.search.mixed.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A part of a setting's plans: `fewest` to `most` replicas, with the recomputations `modes`. No layer is reduced on
    links faster than `link`, every replica has a type with links as fast and one has none faster (infinite: not known).
    All of the types `used` hold layers and no other (empty: not known)."""

    fewest: int
    most: int
    modes: tuple[int, ...]
    link: float
    used: tuple[int, ...]


def usable(table: Table, counts: Array, region: Region) -> Bools:
    """Return which compositions [N, G] a region can have by their types."""
    there, known = counts > 0, np.ones(len(counts), dtype=bool)
    if np.isfinite(region.link):
        known &= np.where(there, table.links, 0.0).max(axis=1) >= region.link
    if region.used:
        known &= ~np.delete(there, region.used, axis=1).any(axis=1)
    return known


def asked_for(table: Table, counts: Ints, region: Region) -> Bools:
    """Return which compositions have what some replica of a region must have, a row for each such thing, [K, N]: links
    of `link` and none faster; each of the types `used`."""
    there = counts > 0
    rows = [there[:, kind] for kind in region.used]
    if np.isfinite(region.link):
        rows.append(np.where(there, table.links, 0.0).max(axis=1) == region.link)
    return np.array(rows, dtype=bool).reshape(len(rows), len(counts))


def by_types(table: Table, region: Region) -> list[Region]:
    """Return the parts of a region by the types in use and the links that limit all layers."""
    types = np.flatnonzero(table.units > 0).tolist()
    return [
        replace(region, used=used, link=link)
        for number in range(1, len(types) + 1)
        for used in combinations(types, number)
        for link in sorted(set(table.links[list(used)].tolist()))
    ]
