"""Cards on PCIe without access to each other's memory send through the host, as slowly as was measured."""

from __future__ import annotations

from itertools import pairwise

import pytest

from shardwright.cost.learned import default_efficiency
from shardwright.cost.learned.links import HOST_RATES
from shardwright.search.planner import plan
from shardwright.spec.cluster import NodePool
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model


def rate(machines: str) -> float:
    (pool,) = load_cluster(machines).pools
    assert isinstance(pool, NodePool)
    return default_efficiency().fabric(pool).intra_bytes_per_second


@pytest.mark.parametrize("gpu", ["RTX3090", "RTX4090", "L40S", "A10G"])
def test_more_cards_share_the_way_through_the_host(gpu: str) -> None:
    rates = [rate(f"1x{count}x{gpu}") for count, _ in HOST_RATES]
    assert all(more < less for less, more in pairwise(rates))
    assert rates[-1] == HOST_RATES[-1][1]


@pytest.mark.parametrize("gpu", ["A100-PCIe-80", "RTXPRO6000", "A100-SXM-80", "TitanRTX"])
def test_cards_with_peer_access_keep_their_links(gpu: str) -> None:
    assert rate(f"1x8x{gpu}") == rate(f"1x2x{gpu}") > 3e9


def test_a_bridge_stands_in_for_the_host(tmp_path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("nodes:\n  - {count: 1, gpu: RTX3090, gpus: 2, intra_node_gb_per_second: 56}\n")
    assert rate(str(cluster)) > HOST_RATES[0][1]


def test_a_7b_on_eight_3090s_is_no_faster_than_its_products() -> None:
    job = make_job(global_batch=64, seq_len=4096)
    best = plan(load_model("llama-2-7b"), load_cluster("1x8xRTX3090"), job, top=1).best
    found = best.prediction
    assert found is not None and found.mfu < 0.6
    assert found.interval[1] / found.interval[0] > 1.6
    assert all(stage.tensor_parallel == 1 for replica in best.replicas for stage in replica.stages)
