"""Sites: links that lead over others, sites that none leads to, and GPUs of one type at several."""

from __future__ import annotations

import pytest

from shardwright.errors import SpecError
from shardwright.spec.cluster import SiteLink
from shardwright.spec.read.cluster import build_cluster
from shardwright.spec.read.sites import connected


def link(one: str, other: str, gbps: float, latency_ms: float = 1.0, egress: float = 0.01) -> dict[str, object]:
    return {"between": [one, other], "gbps": gbps, "latency_ms": latency_ms, "egress_dollars_per_gb": egress}


def cluster_of(sites, links, gpus=None):
    nodes = [{"count": 1, "gpu": (gpus or {}).get(site, "T4"), "gpus": 4, "site": site} for site in sites]
    return build_cluster({"nodes": nodes, "site_links": links}, "c.yaml")


def test_sites_without_a_link_of_their_own_are_reached_over_others() -> None:
    cluster = cluster_of("abc", [link("a", "b", 40, 1, 0.01), link("b", "c", 10, 2, 0.05)])
    way = next(each for each in cluster.site_links if set(each.sites) == {"a", "c"})
    assert way.bytes_per_second == 10e9 / 8
    assert way.latency_seconds == pytest.approx(3e-3)
    assert way.egress_dollars_per_gigabyte == pytest.approx(0.06)


def test_of_several_ways_the_widest_counts() -> None:
    links = [link("a", "b", 40), link("b", "d", 30), link("a", "c", 100), link("c", "d", 20)]
    way = next(each for each in cluster_of("abcd", links).site_links if set(each.sites) == {"a", "d"})
    assert way.bytes_per_second == 30e9 / 8


def test_a_stated_link_is_never_replaced_by_a_way_around_it() -> None:
    links = [link("a", "b", 1), link("a", "c", 100), link("b", "c", 100)]
    direct = next(each for each in cluster_of("abc", links).site_links if set(each.sites) == {"a", "b"})
    assert direct.bytes_per_second == 1e9 / 8


def test_long_chains_are_connected_whatever_the_order() -> None:
    sites = "eacdb"
    chain = [
        SiteLink(sites=pair, bytes_per_second=1e9, latency_seconds=1e-3) for pair in zip("abcd", "bcde", strict=True)
    ]
    found = {frozenset(each.sites): each for each in connected(sites, chain)}
    assert len(found) == 10
    assert found[frozenset("ae")].latency_seconds == pytest.approx(4e-3)


def test_unreachable_sites_are_named() -> None:
    with pytest.raises(SpecError) as caught:
        cluster_of("abcd", [link("a", "b", 40), link("c", "d", 40)])
    for words in ("site_links: no link leads from a to c", "no link leads from a to d", "between: [a, c]"):
        assert words in str(caught.value)


@pytest.mark.parametrize("key", ["gbps", "latency_ms", "egress_dollars_per_gb"])
def test_links_without_bandwidth_or_with_nonsense_are_refused(key) -> None:
    value = 0 if key == "gbps" else -1
    with pytest.raises(SpecError, match=rf"site_links\[0\]\.{key}: must be"):
        cluster_of("ab", [link("a", "b", 40) | {key: value}])


@pytest.mark.parametrize("key", ["inter_node_gbps", "intra_node_gb_per_second"])
def test_machines_without_bandwidth_are_refused(key) -> None:
    with pytest.raises(SpecError, match=rf"nodes\[0\]\.{key}: must be more than zero"):
        build_cluster({"nodes": [{"count": 2, "gpu": "T4", "gpus": 4, key: 0}]}, "c.yaml")


def test_a_type_at_several_sites_has_the_site_in_its_name() -> None:
    cluster = cluster_of("abc", [link("a", "b", 1), link("b", "c", 1)], {"c": "V100-SXM2"})
    assert [pool.gpu.name for pool in cluster.pools] == ["T4@a", "T4@b", "V100-SXM2"]
    assert {pool.gpu.kind for pool in cluster.pools} == {"T4", "V100-SXM2"}
