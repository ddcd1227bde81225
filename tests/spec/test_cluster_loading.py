from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples

from shardwright.errors import SpecError
from shardwright.spec.catalog.prices import load_prices
from shardwright.spec.cluster import Cluster, NodePool
from shardwright.spec.read.cluster import build_cluster, load_cluster, parse_cluster

DESIGN = """
nodes:
  - {count: 4, gpu: A100-SXM-80, gpus: 8, price_per_hour: 21.96}
  - {count: 12, gpu: V100-SXM2, gpus: 8, memory_gb: 32, inter_node_gbps: 100}
"""


def _pool(**entry: Any) -> NodePool:
    return build_cluster({"nodes": [{"count": 4, "gpu": "H100-SXM", "gpus": 8} | entry]}, "c.yaml").pools[0]


def _problems(data: object) -> list[str]:
    with pytest.raises(SpecError) as caught:
        build_cluster(data, "c.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_the_small_form(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(DESIGN)
    cluster = load_cluster(tmp_path / "c.yaml")
    a100, v100 = cluster.pools
    assert cluster.gpus == 128
    assert (a100.nodes, a100.gpus_per_node, a100.dollars_per_node_hour) == (4, 8, 21.96)
    assert a100.inter_bytes_per_second == 1600e9 / 8
    assert v100.inter_bytes_per_second == 100e9 / 8
    assert v100.memory_bytes == 32768 * 2**20
    assert v100.price is not None and "skypilot" in v100.price.source
    assert any("1600 Gbit/s" in assumed.words for assumed in a100.assumed)
    assert not any("price" in assumed.about for assumed in a100.assumed)
    assert not any(assumed.about == "network" for assumed in v100.assumed)


def test_json_and_yaml_and_text_paths_are_equal(tmp_path: Path) -> None:
    data = yaml.safe_load(DESIGN)
    (tmp_path / "c.json").write_text(json.dumps(data))
    (tmp_path / "c.yaml").write_text(DESIGN)
    assert load_cluster(str(tmp_path / "c.json")) == load_cluster(tmp_path / "c.yaml") == build_cluster(data, "x")


@pytest.mark.parametrize(
    ("gpu", "gpus", "gbps"),
    [
        ("A800-SXM-80", 8, 1600),
        ("A100-SXM-40", 8, 1600),
        ("A100-SXM-80", 4, 800),
        ("H100-SXM", 8, 3200),
        ("V100-SXM2", 8, 400),
        ("RTX4090", 4, 25),
        ("GB200", 4, 1600),
    ],
)
def test_network_by_generation(gpu: str, gpus: int, gbps: float) -> None:
    assert _pool(gpu=gpu, gpus=gpus).inter_bytes_per_second == gbps * 1e9 / 8


def test_stated_figures_win_and_are_no_assumptions() -> None:
    pool = _pool(
        price_per_hour=30,
        inter_node_gbps=800,
        inter_node_latency_us=7,
        intra_node_gb_per_second=200,
        intra_node_latency_us=2,
        host_memory_gb=1024,
        host_memory_gb_per_second=300,
        memory_gb=96,
        preemptions_per_hour=0.02,
    )
    assert pool.inter_bytes_per_second == 100e9
    assert pool.intra_bytes_per_second == 200e9
    assert math.isclose(pool.inter_latency_seconds, 7e-6) and math.isclose(pool.intra_latency_seconds, 2e-6)
    assert (pool.host_memory_bytes, pool.host_memory_bytes_per_second) == (1024 * 2**30, 300e9)
    assert (pool.memory_bytes, pool.preemptions_per_hour) == (96 * 2**30, 0.02)
    assert len(pool.assumed) == 1 and "96 GB" in pool.assumed[0].words


def test_memory_of_a_sister_part() -> None:
    assert _pool(gpu="V100-SXM2", memory_gb=16).memory_bytes == 16384 * 2**20
    assert _pool(memory_gb=80).memory_bytes == 81559 * 2**20


def test_a_machine_type_fills_everything() -> None:
    pool = build_cluster({"nodes": [{"count": 2, "machine": "p5.48xlarge", "region": "us-east-1"}]}, "c").pools[0]
    assert (pool.gpu.name, pool.gpus_per_node) == ("H100-SXM", 8)
    assert pool.inter_bytes_per_second == 400e9
    assert pool.price is not None and pool.price.on_demand_per_hour is not None
    assert [assumed.about for assumed in pool.assumed] == ["price"]


def test_a_rack_is_one_domain() -> None:
    assert _pool(gpu="GB200", gpus=4, count=18).domain_gpus == 72
    assert _pool(gpu="GB200", gpus=4, count=4).domain_gpus == 16
    assert _pool(gpu="GB200", gpus=4, count=40).domain_gpus == 72
    assert _pool().domain_gpus == 8


def test_spot_price_applies_where_spot() -> None:
    assert _pool(spot=True, spot_price_per_hour=9, price_per_hour=30).dollars_per_node_hour == 9
    assert _pool(spot_price_per_hour=9, price_per_hour=30).dollars_per_node_hour == 30
    spot, normal = _pool(spot=True).dollars_per_node_hour, _pool().dollars_per_node_hour
    assert spot is not None and normal is not None and spot < normal


def test_equal_groups_of_machines_are_one() -> None:
    same = parse_cluster("2x8xH100-SXM + 1x8xA100-SXM-80 + 3x8xH100-SXM")
    assert [(pool.gpu.name, pool.nodes) for pool in same.pools] == [("H100-SXM", 5), ("A100-SXM-80", 1)]
    slower = {"count": 3, "gpu": "H100-SXM", "gpus": 8, "inter_node_gbps": 100}
    other = build_cluster({"nodes": [{"count": 2, "gpu": "H100-SXM", "gpus": 8}, slower]}, "c")
    assert [pool.nodes for pool in other.pools] == [2, 3]
    racks = {"count": 2, "gpu": "H100-SXM", "gpus": 8, "rack_nodes": 2, "rack_gbps": 800}
    assert [pool.nodes for pool in build_cluster({"nodes": [racks, racks]}, "c").pools] == [2, 2]


def test_the_price_on_demand_is_not_taken_for_that_of_spot() -> None:
    with pytest.raises(SpecError, match="spot_price_per_hour"):
        _pool(spot=True, price_per_hour=30)


def test_where_only_the_other_price_is_known_that_is_said() -> None:
    pool = _pool(gpu="A100-PCIe-40", spot=True)
    assert pool.price is not None and pool.price.on_demand_per_hour and pool.dollars_per_node_hour is None
    assert any("none known for spot, so plans have no cost; on demand $" in str(assumed) for assumed in pool.assumed)


def test_price_of_a_provider_and_region() -> None:
    pool = _pool(provider="lambda", region="us-east-1")
    assert pool.price is not None and pool.price.on_demand_per_hour == 31.92


def test_no_price_is_said_and_not_invented() -> None:
    pool = _pool(gpu="RTX4090")
    assert pool.price is None and pool.dollars_per_node_hour is None
    assert any("price: none known" in str(assumed) for assumed in pool.assumed)


def test_own_prices_go_first(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("provider,gpu,gpus,on_demand_per_hour\nmine,H100,8,12\n")
    rows = load_prices(tmp_path / "p.csv")
    assert load_cluster("2x8xH100-SXM", prices=rows).pools[0].dollars_per_node_hour == 12
    entry = {"count": 1, "gpu": "H100", "gpus": 4, "provider": "mine"}
    assert build_cluster({"nodes": [entry]}, "c", prices=rows).pools[0].dollars_per_node_hour == 6


def test_short_form() -> None:
    cluster = load_cluster("32x8xA800-SXM-80 + 2xp4d.24xlarge")
    assert [(pool.nodes, pool.gpus_per_node, pool.gpu.name) for pool in cluster.pools] == [
        (32, 8, "A800-SXM-80"),
        (2, 8, "A100-SXM-40"),
    ]
    same = build_cluster({"nodes": [{"count": 32, "gpus": 8, "gpu": "A800-SXM-80"}]}, "x")
    assert parse_cluster("32x8xA800-SXM-80") == same


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("8xH100-SXM", "1x8xH100-SXM for 8 GPUs in one machine"),
        ("1664xH100-SXM", "208x8xH100-SXM for 1664 GPUs in 208 machines of 8"),
        ("8x8xH101", "H100"),
        ("0x8xH100", "more than zero"),
        ("8x0xH100", "more than zero"),
        ("8x8xH100+", "no group"),
        ("99999999999x8xH100", "too large"),
        ("2x900xH100", "too large"),
        ("cluster", "NODESxGPUSxTYPE"),
        ("missing.yaml", "no such file"),
        ("p5.48xlarge", "neither a file nor a cluster"),
        ("8x" + "9" * 5000, "unknown machine"),
    ],
)
def test_bad_short_forms(text: str, part: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_cluster(text)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "place", "part"),
    [
        ({"count": 0}, "count", "more than zero"),
        ({"count": -2}, "count", "more than zero"),
        ({"count": 2.5}, "count", "whole number"),
        ({"count": "4"}, "count", "without quotes"),
        ({"count": True}, "count", "expected a number"),
        ({"count": None}, "count", "is missing"),
        ({"gpus": 0}, "gpus", "more than zero"),
        ({"gpu": "H10O"}, "gpu", "H100"),
        ({"gpu": 100}, "gpu", "expected a text"),
        ({"gpu": None}, "gpu", "is missing"),
        ({"gpuz": 8}, "gpuz", "did you mean gpu"),
        ({"machine": "p5.48xlrge"}, "machine", "p5.48xlarge"),
        ({"machine": "p4d.24xlarge"}, "gpu", "leave one of them out"),
        ({"machine": "p5.48xlarge", "gpus": 4}, "gpus", "leave one of them out"),
        ({"machine": "p5.48xlarge", "provider": "gcp"}, "provider", "machine of aws"),
        ({"price_per_hour": -1}, "price_per_hour", "zero or more"),
        ({"price_per_hour": math.nan}, "price_per_hour", "finite"),
        ({"price_per_hour": 3000}, "price_per_hour", "not plausible"),
        ({"inter_node_gbps": 0}, "inter_node_gbps", "more than zero"),
        ({"inter_node_gbps": math.inf}, "inter_node_gbps", "finite"),
        ({"inter_node_gbps": 1e-300}, "inter_node_gbps", "too small"),
        ({"intra_node_gb_per_second": [1]}, "intra_node_gb_per_second", "got a list"),
        ({"memory_gb": -80}, "memory_gb", "more than zero"),
        ({"spot": "yes"}, "spot", "true or false"),
        ({"provider": "amazn"}, "provider", "did you mean"),
        ({"region": "us-esat-1"}, "region", "did you mean"),
        ({"domain_gpus": 12}, "domain_gpus", "multiple"),
        ({"preemptions_per_hour": -0.1}, "preemptions_per_hour", "zero or more"),
        ({"site": 3}, "site", "expected a text"),
    ],
)
def test_each_bad_field_is_named(entry: dict[str, object], place: str, part: str) -> None:
    problems = _problems(
        {"nodes": [{"count": 1, "gpu": "T4", "gpus": 1}, {"count": 4, "gpu": "H100", "gpus": 8} | entry]}
    )
    assert any(line.startswith(f"c.yaml: nodes[1].{place}: ") and part in line for line in problems), problems


def test_all_problems_come_at_once() -> None:
    nodes = [{"count": 0, "gpu": "H10O", "gpus": 8, "prise": 3}, "x", {"gpu": "T4", "gpus": -1}]
    problems = _problems({"nodes": nodes, "nodez": 1, "site_links": [{"between": ["a"]}]})
    places = {line.split(": ")[1] for line in problems}
    assert {"nodes[0].count", "nodes[0].gpu", "nodes[0].prise", "nodes[1]", "nodes[2].count", "nodes[2].gpus"} <= places
    assert {"nodez", "site_links[0].between"} <= places


@pytest.mark.parametrize("data", [None, 3, "x", [], {}, {"nodes": []}, {"nodes": {}}, {"nodes": 3}, {"nodes": [None]}])
def test_shapeless_documents_are_bad_input(data: object) -> None:
    assert _problems(data)


def _two_sites(**link: object) -> Cluster:
    nodes = [{"count": 1, "gpu": "T4", "gpus": 4, "site": site} for site in ("east", "west")]
    return build_cluster({"nodes": nodes, **({"site_links": [link]} if link else {})}, "c.yaml")


def test_sites_are_joined() -> None:
    link = _two_sites(between=["west", "east"], gbps=40, latency_ms=12, egress_dollars_per_gb=0.05).site_links[0]
    assert (link.bytes_per_second, link.latency_seconds, link.egress_dollars_per_gigabyte) == (5e9, 0.012, 0.05)
    assumed = _two_sites()
    assert assumed.site_links[0].sites == ("east", "west")
    assert any(found.about == "link east to west" for found in assumed.pools[1].assumed)


def test_regions_are_sites() -> None:
    nodes = [{"count": 1, "machine": "p5.48xlarge", "region": region} for region in ("us-east-1", "us-west-2")]
    cluster = build_cluster({"nodes": nodes}, "c")
    assert [pool.site for pool in cluster.pools] == ["us-east-1", "us-west-2"] and len(cluster.site_links) == 1
    assert build_cluster({"nodes": nodes[:1]}, "c").pools[0].site == ""


def test_unlike_groups_of_a_type_are_told_apart() -> None:
    group = {"count": 1, "gpu": "T4", "gpus": 4, "inter_node_gbps": 25}
    slow, east, west = group | {"inter_node_gbps": 10}, group | {"site": "east"}, group | {"site": "west"}
    names = [
        [pool.gpu.name for pool in build_cluster({"nodes": nodes}, "c").pools]
        for nodes in ([group, group], [group, slow, group], [east, west], [east, slow | {"site": "east"}, west])
    ]
    assert names == [["T4"], ["T4@1", "T4@2"], ["T4@east", "T4@west"], ["T4@east.1", "T4@east.2", "T4@west"]]


def test_bad_sites() -> None:
    nodes = [{"count": 1, "gpu": "T4", "gpus": 4, "site": "east"}, {"count": 1, "gpu": "T4", "gpus": 4, "site": "west"}]
    assert "did you mean west" in _problems({"nodes": nodes, "site_links": [{"between": ["east", "wst"]}]})[0]
    assert "itself" in _problems({"nodes": nodes, "site_links": [{"between": ["east", "east"]}]})[0]
    del nodes[1]["site"]
    assert "some have none" in _problems({"nodes": nodes})[0]


def test_a_cyclic_file_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("nodes: &n\n  - count: 1\n    gpu: *n\n")
    with pytest.raises(SpecError, match="inside its own anchor"):
        load_cluster(tmp_path / "c.yaml")


def _finite(cluster: Cluster) -> bool:
    positive = [
        value
        for pool in cluster.pools
        for value in (pool.nodes, pool.gpus_per_node, pool.memory_bytes, pool.domain_gpus, pool.intra_bytes_per_second,
                      pool.inter_bytes_per_second, pool.host_memory_bytes, pool.host_memory_bytes_per_second)
    ]  # fmt: skip
    return all(math.isfinite(value) and value > 0 for value in positive)


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["H100", "A100-SXM-80", "p5.48xlarge", "aws", "us-east-1", "GB200"])
    | st.text(max_size=6)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)
KEYS = st.sampled_from(
    (
        "count",
        "gpu",
        "gpus",
        "machine",
        "memory_gb",
        "provider",
        "region",
        "price_per_hour",
        "spot",
        "site",
        "spot_price_per_hour",
        "preemptions_per_hour",
        "inter_node_gbps",
        "inter_node_latency_us",
        "nonsense",
        "intra_node_gb_per_second",
        "domain_gpus",
        "host_memory_gb",
    )
)


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=3), min_size=1, max_size=3))
@settings(max_examples=examples(200), deadline=None)
def test_mutated_clusters_raise_nothing_but_spec_error(changes: list[dict[str, object]]) -> None:
    base = {"count": 2, "gpu": "H100", "gpus": 8}
    data = {"nodes": [copy.deepcopy(base) | change for change in changes]}
    try:
        cluster = build_cluster(data, "c.yaml")
    except SpecError as error:
        assert all(problem.path.startswith("c.yaml: nodes") and problem.message for problem in error.problems)
        return
    assert _finite(cluster)


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_noisy_files_raise_nothing_but_spec_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = list(DESIGN)
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place] = data.draw(st.sampled_from([*"{}[]:,&*-x0\n\t\"'#", ""]))
    path = tmp_path_factory.getbasetemp() / "noisy.yaml"
    path.write_text("".join(text), encoding="utf-8")
    try:
        cluster = load_cluster(path)
    except SpecError:
        return
    assert _finite(cluster)


@given(st.text(max_size=30) | st.from_regex(r"[0-9]{1,3}x[0-9]{1,2}x[AH]100(\+[0-9]x.{0,5})?", fullmatch=True))
@settings(max_examples=examples(150), deadline=None)
def test_noisy_short_forms_raise_nothing_but_spec_error(text: str) -> None:
    try:
        assert _finite(parse_cluster(text))
    except SpecError as error:
        assert error.problems
