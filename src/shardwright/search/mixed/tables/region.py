"""Parts of a setting's plans, and which compositions the links of a part allow."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np

from shardwright.arrays import Array, Bools, Floats, Ints
from shardwright.records import record
from shardwright.search.mixed.tables.columns import Table

UNLIKE_LINKS = 4.0  # times the slowest links the fastest are, from which on regions are split by them first of all


@record
class Region:
    """A part of a setting's plans: `fewest` to `most` replicas, with the recomputations `modes`. No layer is reduced on
    links faster than `link`, every replica has a type with links as fast and one has none faster (infinite: not known).
    All of the types `used` hold layers and no other (empty: not known); plans have `gpus` or more, `most_gpus` at most.

    Where the types in use stand at several sites, either all pipelines cross to all of these, so that a micro-batch
    crosses `crossings` times at least, or some layer is `parted`: a replica holds it at one site and another elsewhere,
    and so each replica has a stage with a layer that is reduced between sites.

    Where all replicas are `alike`, copies of one over several types, the rank order says where each stage stands."""

    fewest: int
    most: int
    modes: tuple[int, ...]
    link: float
    used: tuple[int, ...]
    gpus: int = 1
    most_gpus: int | None = None
    crossings: int = 0
    parted: bool = False
    alike: bool = False


def usable(table: Table, counts: Array, region: Region) -> Bools:
    """Return which compositions [N, G] a region can have by their types."""
    there, known = counts > 0, np.ones(len(counts), dtype=bool)
    if np.isfinite(region.link):
        known &= np.where(there, table.links, 0.0).max(axis=1) >= region.link
    if region.used:
        known &= ~np.delete(there, region.used, axis=1).any(axis=1)
    if region.crossings:
        for site in sites_of(table, region.used):
            known &= there[:, site].any(axis=1)
    return known


def sites_of(table: Table, used: tuple[int, ...]) -> list[list[int]]:
    """Return the types `used` by the sites at which they stand."""
    groups: list[list[int]] = []
    for kind in used:
        home = next((site for site in groups if not np.isfinite(table.site_rates[kind, site[0]])), None)
        groups = [*groups, [kind]] if home is None else [[*site, kind] if site is home else site for site in groups]
    return groups


def between_sites(table: Table, used: tuple[int, ...]) -> tuple[float, float]:
    """Return bytes per second of the fastest link between the sites of the types `used`, and the least delay."""
    rates = table.site_rates[np.ix_(used, used)]
    apart = np.isfinite(rates)
    return float(rates[apart].max()), float(table.site_delays[np.ix_(used, used)][apart].min())


def messages_between_sites(table: Table, region: Region) -> Floats:
    """Return the least seconds of a message between types at two sites, [G, G], none at one site: where all pipelines
    cross between two sites, theirs share the link."""
    together = region.fewest if region.crossings == 1 else 1
    seconds = table.activation_bytes * together / table.site_rates + table.site_delays
    return np.where(np.isfinite(table.site_rates), seconds, 0.0)


def ring_pace_between_sites(table: Table, region: Region) -> float:
    """Return the most bytes per second that a GPU sends between sites in a ring: each GPU of a domain has one, which
    cross at once, and a ring has no more domains than a layer has holders, nor than there are GPUs."""
    rate, _ = between_sites(table, region.used)
    return rate * min(region.most / region.gpus, 1.0)


def ring_delay_between_sites(table: Table, region: Region) -> float:
    """Return the least seconds that a ring between sites waits for their links: there and back, or from one holder to
    the other."""
    _, delay = between_sites(table, region.used)
    return delay * (2.0 if region.fewest > 2 else 1.0)


def agreement_delay(table: Table, region: Region) -> float:
    """Return the least seconds that a sum over all GPUs waits for links between sites."""
    return 2.0 * between_sites(table, region.used)[1] if region.crossings or region.parted else 0.0


def asked_for(table: Table, counts: Ints, region: Region) -> Bools:
    """Return which compositions have what some replica of a region must have, a row for each such thing, [K, N]: links
    of `link` and none faster; each of the types `used`."""
    there = counts > 0
    rows = [there[:, kind] for kind in region.used]
    if np.isfinite(region.link):
        rows.append(np.where(there, table.links, 0.0).max(axis=1) == region.link)
    return np.array(rows, dtype=bool).reshape(len(rows), len(counts))


def by_types(table: Table, region: Region, gpus: int) -> list[Region]:
    """Return the parts of a region with plans on `gpus` or more: by the types in use, the links that limit all layers
    where these are very unlike, and whether pipelines or gradients go between sites."""
    types = np.flatnonzero(table.units > 0).tolist()
    regions = [
        replace(region, used=used, gpus=max(region.gpus, gpus))
        for number in range(1, len(types) + 1)
        for used in combinations(types, number)
    ]
    parts = [
        part for narrow in regions for part in (by_links(table, narrow) if _links_differ(table, narrow) else [narrow])
    ]
    return [part for narrow in parts for part in _by_sites(table, narrow)]


def _links_differ(table: Table, region: Region) -> bool:
    links = table.links[list(region.used)]
    return bool(links.max() >= UNLIKE_LINKS * links.min() or links.max() == links.min())


def by_links(table: Table, region: Region) -> list[Region]:
    """Return the parts of a region, the types in use of which are known, by the links that limit all layers; nothing
    where these are known already."""
    if np.isfinite(region.link) or not region.used:
        return []
    return [replace(region, link=link) for link in sorted(set(table.links[list(region.used)].tolist()))]


def _by_sites(table: Table, region: Region) -> list[Region]:
    crossings = len(sites_of(table, region.used)) - 1
    if not crossings:
        return [region]
    return [replace(region, crossings=crossings)] + [replace(region, parted=True)] * (region.most > 1)
