"""Reading of a cluster: a YAML or JSON file, a mapping, or a short form such as `32x8xA800-SXM-80`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from shardwright.errors import SpecError, bad, reject
from shardwright.spec.catalog.gpus import known_gpu
from shardwright.spec.catalog.prices import MachinePrice
from shardwright.spec.cluster import Assumption, Cluster, Gpu, NodePool, SiteLink
from shardwright.spec.read.mixed_machines import read_machines
from shardwright.spec.read.pools import NO_GPUS
from shardwright.spec.read.sites import assumed_links, connected, named_apart, read_site_links, unreachable
from shardwright.spec.text.fields import Section, shown
from shardwright.spec.text.reading import JSON, YAML, document

SHORT_FORM = (
    "NODESxGPUSxTYPE, as 32x8xA800-SXM-80, NODESx(GPUSxTYPE+GPUSxTYPE), as 1x(2xRTX4090+1xRTX3090), or NODESxMACHINE, "
    "as 4xp5.48xlarge; several joined by +"
)
BETWEEN_GROUPS = re.compile(r"\+(?![^()]*\))")
MIXED_PART = re.compile(r"(?P<count>[0-9]+)\s*[x×*]\s*\((?P<types>[^()]*)\)")
TYPE_PART = re.compile(r"(?P<count>[0-9]+)\s*[x×*]\s*(?P<type>\S.*)")
SHORT_PART = re.compile(r"(?P<count>[0-9]+)\s*[x×*]\s*((?P<gpus>[0-9]+)\s*[x×*]\s*)?(?P<type>\S.*)")
USUAL = 8  # GPUs of most machines
TOP_KEYS = ("name", "nodes", "site_links")


def load_cluster(
    source: str | Path, *, prices: Sequence[MachinePrice] = (), measured: Mapping[str, Gpu] = NO_GPUS
) -> Cluster:
    """Return the cluster of a YAML or JSON file, or of a short form (see `parse_cluster`).

    `prices` are the user's own, which go before the catalogue's; `measured` are GPUs that the catalogue does not have,
    by name. Raises SpecError with every problem of the file.
    """
    path = Path(source)
    if isinstance(source, str) and not _exists(path):
        if SHORT_PART.fullmatch(groups_of(source)[0]):
            return parse_cluster(source, prices=prices, measured=measured)
        if path.suffix.casefold() not in (JSON, *YAML) and "/" not in source:
            raise bad(source, "is neither a file nor a cluster in short form", SHORT_FORM)
    with document(path) as data:
        return build_cluster(data, str(path), prices=prices, measured=measured)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def groups_of(text: str) -> list[str]:
    """Return the groups of machines of a short form."""
    return [part.strip() for part in BETWEEN_GROUPS.split(text)]


def parse_cluster(text: str, *, prices: Sequence[MachinePrice] = (), measured: Mapping[str, Gpu] = NO_GPUS) -> Cluster:
    """Return the cluster of a short form: `32x8xA800-SXM-80` is 32 machines of 8 GPUs, `1x(2xRTX4090+1xRTX3090)` a
    machine with GPUs of two types, `4xp5.48xlarge` 4 machines of a type, and `+` joins groups of machines. Raises
    SpecError."""
    nodes: list[dict[str, object]] = []
    for part in groups_of(text):
        match = SHORT_PART.fullmatch(part)
        if mixed := MIXED_PART.fullmatch(part):
            nodes.append({"count": _whole(text, part, mixed["count"]), "gpus": _types(text, part, mixed["types"])})
            continue
        if match is None or set(part) & set("()"):
            raise bad(text, f"{shown(part)} is no group of machines", f"write {SHORT_FORM}")
        count, gpus, kind = match["count"], match["gpus"], match["type"].strip()
        machines = _whole(text, part, count)
        if gpus is not None:
            nodes.append({"count": machines, "gpus": _whole(text, part, gpus), "gpu": kind})
        elif known_gpu(kind):
            raise bad(text, f"{shown(part)} does not say how many GPUs a machine has", _grouped(machines, kind))
        else:
            nodes.append({"count": machines, "machine": kind})
    return build_cluster({"nodes": nodes}, text, prices=prices, measured=measured)


def short_form(cluster: Cluster) -> str:
    """Return the machines of a cluster as `parse_cluster` takes them."""
    parts = []
    for _, group in groupby(cluster.pools, key=lambda pool: pool.machines):
        pools = list(group)
        inside = "+".join(f"{pool.gpus_per_node}x{pool.gpu.kind}" for pool in pools)
        parts.append(f"{pools[0].nodes}x({inside})" if len(pools) > 1 else f"{pools[0].nodes}x{inside}")
    return "+".join(parts)


def _types(text: str, part: str, types: str) -> dict[str, int]:
    """Return how many GPUs of each type the machines of a short form have."""
    counted: dict[str, int] = {}
    for word in types.split("+"):
        match = TYPE_PART.fullmatch(word.strip())
        if match is None:
            raise bad(text, f"{shown(word.strip())} is no number of GPUs of a type", f"write {SHORT_FORM}")
        kind = match["type"].strip()
        counted[kind] = counted.get(kind, 0) + _whole(text, part, match["count"])
    return counted


def _whole(text: str, part: str, digits: str) -> int:
    if len(digits) > 9:
        raise bad(text, f"{shown(part)} has too large a number", "correct the number")
    return int(digits)


def _grouped(count: int, kind: str) -> str:
    """Return how to write so many GPUs, or machines, of a type."""
    machines = count // USUAL if count > USUAL and count % USUAL == 0 else 1
    usual = f"{machines} machines of {USUAL}" if machines > 1 else "one machine"
    return (
        f"write {machines}x{count // machines}x{kind} for {count} GPUs in {usual}, or {count}x{USUAL}x{kind} for "
        f"{count} machines of {USUAL}"
    )


def build_cluster(
    data: object, name: str, *, prices: Sequence[MachinePrice] = (), measured: Mapping[str, Gpu] = NO_GPUS
) -> Cluster:
    """Return the cluster of a mapping in the form of a cluster file; `name` stands for the file in messages.

    Whatever is missing comes from the catalogue, and `NodePool.assumed` says so. Raises SpecError with every problem.
    """
    if not isinstance(data, Mapping):
        hint = "start with `nodes:` and a list of machines"
        raise bad(name, f"expected a mapping, got {'an empty file' if data is None else shown(data)}", hint)
    root = Section(name, data, [])
    root.reject_unknown(TOP_KEYS)
    title = root.text("name") or ""
    if not data.get("nodes"):
        root.report("nodes", "is missing or empty", "list the machines: - {count: 4, gpu: A100-SXM-80, gpus: 8}")
    groups = [read_machines(section, prices, measured) for section in root.sections("nodes")]
    known = [pool for group in groups for pool in group]
    if root.problems:
        read_site_links(root, {pool.site for pool in known})
        raise SpecError(*root.problems)
    known = _alike_together(_machines_apart(_with_sites(groups, data)))
    stated = read_site_links(root, {pool.site for pool in known})
    if len({bool(pool.site) for pool in known}) > 1:
        root.report("nodes", "some groups have a site and some have none", "give every group a site, or none")
    reject(root.problems)
    cluster = _joined(root, known, stated, title)
    reject(root.problems)
    return cluster


def _with_sites(groups: Sequence[Sequence[NodePool]], data: Mapping[str, object]) -> list[Sequence[NodePool]]:
    """Return the pools of each entry; where none states a site and their regions differ, the regions are the sites."""
    entries = data["nodes"]
    assert isinstance(entries, list)
    regions = [str(entry.get("region") or "") for entry in entries]
    if any(pool.site for group in groups for pool in group) or "" in regions or len(set(regions)) == 1:
        return list(groups)
    return [
        [
            replace(pool, site=region, assumed=(*pool.assumed, Assumption("site", f"the region {region}")))
            for pool in group
        ]
        for group, region in zip(groups, regions, strict=True)
    ]


def _machines_apart(groups: Sequence[Sequence[NodePool]]) -> list[NodePool]:
    """Return the pools of all entries; machines with the same GPUs of several types that are unlike in other figures
    get numbers behind their names."""
    named: dict[str, list[list[NodePool]]] = {}
    found: list[NodePool] = []
    for group in groups:
        if not group or group[0].mixed is None:
            found.extend(group)
            continue
        alike = [replace(pool, nodes=1) for pool in group]
        known = named.setdefault(group[0].mixed.name, [])
        number = known.index(alike) if alike in known else len(known)
        known += [alike] if number == len(known) else []
        suffix = f" ({number + 1})" if number else ""
        found += [
            replace(pool, mixed=replace(pool.mixed, name=pool.mixed.name + suffix)) for pool in group if pool.mixed
        ]
    return found


def _alike_together(pools: Sequence[NodePool]) -> list[NodePool]:
    """Return the pools, equal groups of machines as one group, for a plan to use them all. Racks are not shared."""
    counts: dict[NodePool, int] = {}
    for place, pool in enumerate(pools):
        key = replace(pool, nodes=-place) if pool.rack_nodes else replace(pool, nodes=1)
        counts[key] = counts.get(key, 0) + pool.nodes
    return [replace(pool, nodes=count) for pool, count in counts.items()]


def _joined(root: Section, pools: Sequence[NodePool], stated: Sequence[SiteLink], name: str) -> Cluster:
    """Return the cluster with a link for every pair of sites: the stated ones and ways over them or, where none is
    stated, assumptions. Adds a problem for a site that cannot be reached."""
    sites = list(dict.fromkeys(pool.site for pool in pools))
    if stated:
        links = connected(sites, stated)
        root.problems.extend(unreachable(root.place, sites, links))
        return Cluster(pools=tuple(named_apart(pools)), site_links=links, name=name)
    links, figures = assumed_links(sites)
    taken = [(link.sites[1], Assumption(f"link {link.sites[0]} to {link.sites[1]}", figures)) for link in links]
    noted = [
        replace(pool, assumed=(*pool.assumed, *(link for site, link in taken if site == pool.site))) for pool in pools
    ]
    return Cluster(pools=tuple(named_apart(noted)), site_links=links, name=name)
