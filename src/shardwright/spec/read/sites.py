"""Sites of a cluster: which links lead from one to another, and what GPUs of one type at several sites are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

from shardwright.errors import Problem, suggestion
from shardwright.spec.catalog.machines import GBIT_BYTES, links
from shardwright.spec.cluster import NodePool, SiteLink
from shardwright.spec.text.fields import Section, shown

LINK_KEYS = ("between", "gbps", "latency_ms", "egress_dollars_per_gb")


def read_site_links(root: Section, sites: set[str]) -> list[SiteLink]:
    """Return the links of `site_links`, adding problems with them to the section."""
    links: dict[frozenset[str], SiteLink] = {}
    for section in root.sections("site_links"):
        section.reject_unknown(LINK_KEYS)
        stated = {
            "bytes_per_second": (section.number("gbps"), GBIT_BYTES),
            "latency_seconds": (section.number("latency_ms", zero=True, most=1e6), 1e-3),
            "egress_dollars_per_gigabyte": (section.number("egress_dollars_per_gb", zero=True, most=100), 1.0),
        }
        ends = section.fields.get("between")
        if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, str) for end in ends):
            section.report("between", f"expected two site names, got {shown(ends)}", "write between: [east, west]")
            continue
        unknown = [end for end in ends if end not in sites]
        for end in unknown:
            section.report("between", f"no group of machines is at site {shown(end)}", suggestion(end, sites - {""}))
        if ends[0] == ends[1] or frozenset(ends) in links:
            section.report("between", "joins a site to itself, or sites already joined", "list each pair once")
        figures: dict[str, Any] = {field: value * unit for field, (value, unit) in stated.items() if value is not None}
        links[frozenset(ends)] = replace(_wide_area((ends[0], ends[1])), **figures)
    return list(links.values())


def _wide_area(sites: tuple[str, str]) -> SiteLink:
    """A link of which nothing is said but what it joins."""
    standard = links()["WAN"]
    return SiteLink(
        sites=sites,
        bytes_per_second=standard.bytes_per_second,
        latency_seconds=standard.latency_seconds,
        egress_dollars_per_gigabyte=standard.egress_dollars_per_gigabyte,
    )


def connected(sites: Sequence[str], stated: Sequence[SiteLink]) -> tuple[SiteLink, ...]:
    """Return a link for every pair of sites that can be reached over `stated` links: the link itself, or else the way
    with the most bandwidth, whose latencies and egress prices add up."""
    ways = {frozenset(link.sites): link for link in stated}
    for middle, start, other in product(sites, sites, sites):
        first, second = ways.get(frozenset((start, middle))), ways.get(frozenset((middle, other)))
        direct = any(set(link.sites) == {start, other} for link in stated)
        if len({start, middle, other}) < 3 or direct or first is None or second is None:
            continue
        way = SiteLink(
            sites=(start, other),
            bytes_per_second=min(first.bytes_per_second, second.bytes_per_second),
            latency_seconds=first.latency_seconds + second.latency_seconds,
            egress_dollars_per_gigabyte=first.egress_dollars_per_gigabyte + second.egress_dollars_per_gigabyte,
        )
        known = ways.get(frozenset((start, other)))
        if known is None or way.bytes_per_second > known.bytes_per_second:
            ways[frozenset((start, other))] = way
    return tuple(ways[pair] for pair in map(frozenset, combinations(sites, 2)) if pair in ways)


def unreachable(name: str, sites: Sequence[str], links: Sequence[SiteLink]) -> Iterator[Problem]:
    """Yield a problem for every site that no link joins to the first."""
    reached = {sites[0], *(site for link in links if sites[0] in link.sites for site in link.sites)}
    for site in sites:
        if site not in reached:
            message = f"no link leads from {sites[0]} to {site}"
            yield Problem(f"{name}: site_links", message, f"add - {{between: [{sites[0]}, {site}], gbps: …}}")


def assumed_links(sites: Sequence[str]) -> tuple[tuple[SiteLink, ...], str]:
    """Return a wide-area link for every pair of sites, for a cluster that states none, and its figures in words."""
    standard = links()["WAN"]
    figures = (
        f"{standard.bytes_per_second / GBIT_BYTES:g} Gbit/s, {standard.latency_seconds * 1e3:g} ms, "
        f"${standard.egress_dollars_per_gigabyte:g}/GB"
    )
    return tuple(map(_wide_area, combinations(sites, 2))), figures


def named_apart(pools: Sequence[NodePool]) -> list[NodePool]:
    """Return the pools, each with a name of its own for its GPU type, as a stage names only that: with the site where
    machines of the type stand at several, with a number where those at one are unlike."""
    here = Counter((pool.gpu.name, pool.site) for pool in pools)
    sites = Counter(name for name, _ in here)
    named, numbers = [], Counter[tuple[str, str]]()
    for pool in pools:
        place = pool.gpu.name, pool.site
        numbers[place] += 1
        words = (pool.site if sites[pool.gpu.name] > 1 else "", str(numbers[place]) if here[place] > 1 else "")
        suffix = ".".join(word for word in words if word)
        named.append(replace(pool, gpu=replace(pool.gpu, name=f"{pool.gpu.name}@{suffix}")) if suffix else pool)
    return named
