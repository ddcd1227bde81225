"""Machines with GPUs of several types: as they are said, and what the pools of their types have of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import SpecError
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.cluster import Cluster, machines_used
from shardwright.spec.read.cluster import build_cluster, load_cluster, parse_cluster

STATED: dict[str, Any] = {
    "price_per_hour": 1.5,
    "spot_price_per_hour": 0.5,
    "spot": True,
    "preemptions_per_hour": 0.02,
    "inter_node_gbps": 10,
    "inter_node_latency_us": 30,
    "intra_node_gb_per_second": 16,
    "intra_node_latency_us": 5,
    "host_memory_gb": 128,
    "host_memory_gb_per_second": 60,
    "site": "home",
}
NAMES = sorted(name for name, gpu in gpus().items() if gpu.link_domain <= 16)
GPU, COUNT = st.sampled_from(NAMES), st.integers(1, 8)


def box(gpus: dict[str, int], count: int = 1, **stated: object) -> Cluster:
    return build_cluster({"nodes": [{"count": count, "gpus": gpus, **stated}]}, "box.yaml")


@given(GPU, COUNT, COUNT, COUNT, st.sets(st.sampled_from(sorted(STATED.keys() - {"spot"}))))
def test_a_machine_of_one_type_is_as_if_the_type_was_named(
    gpu: str, nodes: int, first: int, more: int, keys: set[str]
) -> None:
    stated = {key: STATED[key] for key in keys}
    plain = build_cluster({"nodes": [{"count": nodes, "gpu": gpu, "gpus": first + more, **stated}]}, "plain.yaml")
    assert box({gpu: first + more}, nodes, **stated) == plain
    if not stated:
        assert parse_cluster(f"{nodes}x({first}x{gpu}+{more}x{gpu})") == parse_cluster(f"{nodes}x{first + more}x{gpu}")


@given(st.lists(GPU, min_size=2, max_size=4, unique=True), st.data())
def test_what_a_machine_is_said_to_have_is_there_once(names: list[str], data: st.DataObject) -> None:
    counts = {name: data.draw(COUNT) for name in names}
    whole = sum(counts.values())
    cluster = box(counts, 2, **STATED)
    assert [(pool.gpu.name, pool.gpus_per_node) for pool in cluster.pools] == list(counts.items())
    assert sum(pool.host_memory_bytes for pool in cluster.pools) == pytest.approx(128 * 2**30)
    assert sum(pool.host_memory_bytes_per_second for pool in cluster.pools) == pytest.approx(60e9)
    assert sum(pool.inter_bytes_per_second for pool in cluster.pools) == pytest.approx(10e9 / 8)
    assert {(pool.dollars_per_node_hour, pool.gpus_of_machine, pool.nodes) for pool in cluster.pools} == {
        (0.5, whole, 2)
    }
    assert len({pool.machines for pool in cluster.pools}) == 1
    assert cluster.mixed and not cluster.one_machine and box(counts).one_machine
    everything = {pool.gpu.name: pool.gpus for pool in cluster.pools}
    assert [count for _, count in machines_used(cluster, everything)] == [2]
    (_, used), *_ = machines_used(cluster, {names[0]: 1})
    assert used == 1


@given(st.lists(GPU, min_size=2, max_size=3, unique=True), COUNT)
def test_what_nobody_states_is_as_in_a_machine_of_the_type_alone(names: list[str], count: int) -> None:
    cluster = box(dict.fromkeys(names, count))
    for pool in cluster.pools:
        (alone,) = parse_cluster(f"1x{count * len(names)}x{pool.gpu.name}").pools
        for name in ("inter_bytes_per_second", "host_memory_bytes", "host_memory_bytes_per_second"):
            each = getattr(alone, name) / alone.gpus_per_node
            assert getattr(pool, name) / pool.gpus_per_node == pytest.approx(each)
        assert pool.mixed is not None and pool.mixed.bytes_per_second <= pool.gpu.pcie_bytes_per_second
        assert pool.price is None and any("no cost" in str(item) for item in pool.assumed)


def test_machines_of_several_types_stand_beside_others() -> None:
    cluster = load_cluster("2x(4xA100-SXM-80+4xV100-SXM2-32) + 1x8xH100-SXM+1x(4xA100-SXM-80+4xV100-SXM2)")
    pools = [(pool.gpu.name, pool.nodes, pool.gpus_per_node, pool.mixed is not None) for pool in cluster.pools]
    assert pools == [("A100-SXM-80", 3, 4, True), ("V100-SXM2", 3, 4, True), ("H100-SXM", 1, 8, False)]
    assert cluster.gpus == 32 and not cluster.one_machine


def test_machines_that_differ_in_what_is_said_of_them_are_not_one_kind() -> None:
    same = {"RTX4090": 2, "RTX3090": 1}
    entries = [{"count": 1, "gpus": same, "host_memory_gb": size} for size in (64, 128, 64)]
    cluster = build_cluster({"nodes": entries}, "boxes.yaml")
    assert [(pool.gpu.name, pool.nodes) for pool in cluster.pools] == [
        ("RTX4090@1", 2), ("RTX3090@1", 2), ("RTX4090@2", 1), ("RTX3090@2", 1),
    ]  # fmt: skip
    kinds = {pool.machines for pool in cluster.pools}
    assert kinds == {"2xRTX4090+1xRTX3090", "2xRTX4090+1xRTX3090 (2)"}


def test_regions_of_entries_are_sites_of_all_their_types() -> None:
    nodes = [
        {"count": 1, "gpus": {"RTX4090": 2, "RTX3090": 1}, "region": "eastus"},
        {"count": 1, "gpu": "L4", "gpus": 2, "region": "westus"},
    ]
    assert [pool.site for pool in build_cluster({"nodes": nodes}, "two.yaml").pools] == ["eastus", "eastus", "westus"]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"gpus": {"RTX4090": 2, "RTX309": 1}}, "gpus.RTX309: unknown GPU"),
        ({"gpus": {"RTX4090": 2, "RTX3090": 0}}, "gpus.RTX3090: must be more than zero"),
        ({"gpus": {"RTX4090": 2, "RTX3090": None}}, "gpus.RTX3090: is missing"),
        ({"gpus": {"RTX4090": 60, "RTX3090": 6}}, "more than 64 in a machine"),
        ({"gpus": {}}, "gpus: names no GPU"),
        ({"gpus": {"RTX4090": 2, "RTX3090": 1}, "gpu": "RTX4090"}, "nodes[0].gpu: is not said of machines"),
        ({"gpus": {"RTX4090": 2, "RTX3090": 1}, "memory_gb": 24}, "nodes[0].memory_gb: is not said of machines"),
        ({"gpus": {"RTX4090": 2, "RTX3090": 1}, "provider": "aws"}, "nodes[0].provider: is not said of machines"),
        ({"gpus": {"RTX4090": 2, "RTX3090": 1}, "price_per_hour": 9e5}, "is not plausible"),
        ({"gpus": {"RTX4090": 2, "RTX3090": 1}, "host_memory_gb": "much"}, "expected a number"),
        ({"gpus": {"RTX4090": 2, "RTX3090": 1}, "hosts": 3}, "unknown key"),
    ],
)
def test_what_makes_no_sense_is_named_once(entry: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        build_cluster({"nodes": [{"count": 1, **entry}]}, "box.yaml")
    assert len(refused.value.problems) == 1 and words in str(refused.value)


@given(st.from_regex(r"[0-9]{1,2}x\(?[0-9]x[AR]100(\+[0-9]x[AL]4?\)?.{0,3}){0,2}", fullmatch=True))
def test_noisy_short_forms_are_read_or_refused(text: str) -> None:
    try:
        assert parse_cluster(text).gpus > 0
    except SpecError as error:
        assert error.problems
