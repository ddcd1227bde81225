"""Reading of a cluster: a YAML or JSON file, a mapping, or a short form such as `32x8xA800-SXM-80`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shardwright.errors import Problem, SpecError, bad
from shardwright.spec.catalog.gpus import known_gpu
from shardwright.spec.catalog.prices import MachinePrice
from shardwright.spec.cluster import Assumption, Cluster, Gpu, NodePool, SiteLink
from shardwright.spec.read.pools import BOX, NO_GPUS, read_pool
from shardwright.spec.read.sites import assumed_links, connected, named_apart, read_site_links, unreachable
from shardwright.spec.text.fields import Section, shown
from shardwright.spec.text.reading import document

SHORT_FORM = "NODESxGPUSxTYPE, as 32x8xA800-SXM-80, or NODESxMACHINE, as 4xp5.48xlarge; several joined by +"
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
        if SHORT_PART.fullmatch(source.split("+")[0].strip()):
            return parse_cluster(source, prices=prices, measured=measured)
        if not path.suffix and "/" not in source:
            raise bad(source, "is neither a file nor a cluster in short form", SHORT_FORM)
    with document(path) as data:
        return build_cluster(data, str(path), prices=prices, measured=measured)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def parse_cluster(text: str, *, prices: Sequence[MachinePrice] = (), measured: Mapping[str, Gpu] = NO_GPUS) -> Cluster:
    """Return the cluster of a short form: `32x8xA800-SXM-80` is 32 machines of 8 GPUs, `4xp5.48xlarge` 4 machines of
    a type, and `+` joins groups of machines. Raises SpecError."""
    if set(text) & set("()"):
        raise bad(text, "groups of machines are of one GPU type", f"write a group for each type, as {BOX}")
    nodes: list[dict[str, object]] = []
    for part in text.split("+"):
        match = SHORT_PART.fullmatch(part.strip())
        if match is None:
            raise bad(text, f"{shown(part.strip())} is no group of machines", f"write {SHORT_FORM}")
        count, gpus, kind = match["count"], match["gpus"], match["type"].strip()
        if max(len(count), len(gpus or "")) > 9:
            raise bad(text, f"{shown(part.strip())} has too large a number", "correct the number")
        if gpus is not None:
            nodes.append({"count": int(count), "gpus": int(gpus), "gpu": kind})
        elif known_gpu(kind):
            raise bad(
                text, f"{shown(part.strip())} does not say how many GPUs a machine has", _grouped(int(count), kind)
            )
        else:
            nodes.append({"count": int(count), "machine": kind})
    return build_cluster({"nodes": nodes}, text, prices=prices, measured=measured)


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
    problems: list[Problem] = []
    root = Section(name, data, problems)
    root.reject_unknown(TOP_KEYS)
    title = root.text("name") or ""
    if not data.get("nodes"):
        root.report("nodes", "is missing or empty", "list the machines: - {count: 4, gpu: A100-SXM-80, gpus: 8}")
    pools = [read_pool(section, prices, measured) for section in root.sections("nodes")]
    known = [pool for pool in pools if pool is not None]
    if problems:
        read_site_links(root, {pool.site for pool in known})
        raise SpecError(*problems)
    known = _alike_together(_with_sites(known, data))
    stated = read_site_links(root, {pool.site for pool in known})
    if len({bool(pool.site) for pool in known}) > 1:
        root.report("nodes", "some groups have a site and some have none", "give every group a site, or none")
    if problems:
        raise SpecError(*problems)
    cluster = _joined(root, known, stated, title)
    if problems:
        raise SpecError(*problems)
    return cluster


def _with_sites(pools: Sequence[NodePool], data: Mapping[str, object]) -> list[NodePool]:
    """Return the pools; where none states a site and their regions differ, the regions are the sites."""
    entries = data["nodes"]
    assert isinstance(entries, list)
    regions = [str(entry.get("region") or "") for entry in entries]
    if any(pool.site for pool in pools) or "" in regions or len(set(regions)) == 1:
        return list(pools)
    return [
        replace(pool, site=region, assumed=(*pool.assumed, Assumption("site", f"the region {region}")))
        for pool, region in zip(pools, regions, strict=True)
    ]


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
