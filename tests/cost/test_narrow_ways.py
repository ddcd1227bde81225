"""Narrow ways: racks whose uplink is narrower than what their machines send, and cards on PCIe without access to each
other's memory, which send through the host. What takes them is slower, and nothing else.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from shardwright import Ranking, SpecError, load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.learned import default_efficiency
from shardwright.cost.learned.links import HOST_RATES, slower_when_whole
from shardwright.cost.network.collectives import Fabric, Group, exchange_seconds, gather_seconds, rack_seconds
from shardwright.plans.findings import Cheapest, Fastest, NotCovered
from shardwright.plans.plan import Plan
from shardwright.search.objective import INDIFFERENCE
from shardwright.search.planner import plan, predict
from shardwright.search.planner import plan as search
from shardwright.search.space.axes import parse_pins
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.cluster import NodePool
from shardwright.spec.job import Objective
from shardwright.spec.read.cluster import build_cluster, load_cluster

MACHINE_GBPS = 400
LINKS = Fabric(
    domain_gpus=4,
    intra_bytes_per_second=100e9,
    intra_latency_seconds=0.0,
    inter_bytes_per_second=10e9,
    inter_latency_seconds=0.0,
    rack_gpus=16,
    rack_bytes_per_second=40e9,  # a quarter of what its 16 GPUs send
)


def groups(size: int, stride: int) -> Group:
    return Group(size=np.array([size]), local=np.array([np.clip(4 // stride, 1, size)]), stride=np.array([stride]))


def test_a_group_in_its_rack_does_not_notice() -> None:
    assert gather_seconds(LINKS, groups(16, 1), np.array([16e9]))[0] == pytest.approx(15e9 / 4 / 10e9)


def test_rings_of_neighbours_leave_a_rack_once() -> None:
    """Four rings, one for each GPU of a machine, at 10 GB/s each: just what leaves a rack."""
    assert gather_seconds(LINKS, groups(32, 1), np.array([32e9]))[0] == pytest.approx(31e9 / 4 / 10e9)


def test_rings_across_racks_share_what_leaves_them() -> None:
    """Ranks 16 apart: 16 rings of two share 40 GB/s."""
    assert gather_seconds(LINKS, groups(2, 16), np.array([2e9]))[0] == pytest.approx(1e9 / 2.5e9)


def test_all_to_all_is_bound_by_what_leaves_a_rack() -> None:
    found = exchange_seconds(LINKS, groups(32, 1), np.array([32e9]))[0]
    assert found == pytest.approx(16e9 * 16 / 40e9)


def test_messages_to_the_next_rack() -> None:
    assert rack_seconds(LINKS, np.array([1e9]), np.array([16]))[0] == pytest.approx(1e9 / 2.5e9)
    assert rack_seconds(LINKS, np.array([1e9]), np.array([64]))[0] == pytest.approx(1e9 / 2.5e9)
    assert rack_seconds(LINKS, np.array([1e9]), np.array([2]))[0] == pytest.approx(1e9 / 20e9)


@cache
def planned(rack_gbps: float | None, pins: tuple[str, ...] = ()) -> Ranking:
    node = {"count": 8, "gpu": "A100-SXM-80", "gpus": 4, "inter_node_gbps": MACHINE_GBPS}
    racks = {} if rack_gbps is None else {"rack_nodes": 2, "rack_gbps": rack_gbps}
    cluster = build_cluster({"nodes": [node | racks]}, "racks")
    job = make_job(global_batch=128, seq_len=2048)
    return search(load_model("llama-2-13b"), cluster, job, efficiency=Analytic(), space=parse_pins(pins), top=4)


def seconds(rack_gbps: float | None, pins: tuple[str, ...] = ()) -> float:
    prediction = planned(rack_gbps, pins).best.predicted
    return prediction.iteration_seconds


def test_racks_that_let_everything_through_change_nothing() -> None:
    assert seconds(2 * MACHINE_GBPS) == pytest.approx(seconds(None), rel=1e-6)


def test_narrower_racks_are_never_faster_and_a_layout_knows_them() -> None:
    times = [seconds(rack_gbps) for rack_gbps in (800, 200, 50)]
    assert times == sorted(times)
    assert times[-1] > times[0]
    forced = seconds(50, ("pp=1", "tp=4", "dp=8"))
    assert times[-1] < forced


@pytest.mark.parametrize("rack_gbps", [200, 50])
@pytest.mark.parametrize("pins", [(), ("pp=2,4", "tp=2"), ("pp=4", "rank_order=tp-cp-ep-pp-dp")])
def test_a_uniform_plan_takes_what_the_uniform_model_says(rack_gbps: float, pins: tuple[str, ...]) -> None:
    for ranked in planned(rack_gbps, pins).plans:
        assert mixed_iteration(ranked, Analytic()).seconds == pytest.approx(ranked.iteration_seconds, rel=1e-9)


@pytest.mark.parametrize(
    ("racks", "words"),
    [
        ({"rack_nodes": 2}, r"nodes\[0\]\.rack_gbps: is missing"),
        ({"rack_gbps": 100}, r"nodes\[0\]\.rack_nodes: is missing"),
        ({"rack_nodes": 2, "rack_gbps": 0}, r"nodes\[0\]\.rack_gbps: must be more than zero"),
    ],
)
def test_half_a_rack_is_refused(racks: dict[str, float], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        build_cluster({"nodes": [{"count": 4, "gpu": "A100-SXM-80", "gpus": 4} | racks]}, "racks")


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
    assert all(stage.tensor_parallel == 1 for stage in best.stages)


@pytest.mark.parametrize("name", sorted(gpus()))
def test_machines_whose_parts_would_be_faster_are_known(name: str) -> None:
    """Of every card, in machines of 1 to 8: a smaller one has faster links exactly where that is said."""
    pools = [load_cluster(f"1x{count}x{name}").pools[0] for count in range(1, 9)]
    rates = [default_efficiency().fabric(pool).intra_bytes_per_second for pool in pools]
    for count, pool in enumerate(pools):
        assert slower_when_whole(pool) == (max(rates[: count + 1]) > 1.001 * rates[count])


def best_on(cluster: str, **settings) -> Plan:
    job = make_job(global_batch=20, seq_len=1000, **settings)
    return plan(load_model("llama-3.2-1b"), load_cluster(cluster), job, top=1).best


@pytest.mark.parametrize("framework", ["fsdp", "megatron"])
@pytest.mark.parametrize("name", ["L40S", "RTX4090", "A10G"])
def test_more_gpus_in_a_machine_never_make_the_best_plan_slower(name: str, framework: str) -> None:
    """Rings through the host slow down with every GPU: part of the machine is a plan then, at the speed of the part."""
    best = [best_on(f"1x{gpus}x{name}", framework=framework) for gpus in range(1, 9)]
    for fewer, more in pairwise(best):
        assert more.iteration_seconds <= fewer.iteration_seconds * (1 + 1e-9)
    for found in best:
        priced = predict(found).predicted
        assert priced.iteration_seconds == found.iteration_seconds
        bound = found.predicted.lower_bound_seconds
        assert bound is not None and found.iteration_seconds <= (1 + INDIFFERENCE) * bound
        assert {memory.capacity_bytes for row in priced.memory for memory in row} == {
            found.cluster.pools[0].memory_bytes
        }


@pytest.mark.parametrize("limit", ["deadline_hours", "budget_dollars"])
@pytest.mark.parametrize("cluster", ["1x5xL40S", "1x8xL40S", "2x8xL40S"])
def test_what_no_plan_keeps_is_told_beside_the_best_of_parts(cluster: str, limit: str) -> None:
    """Of a limit just below what the best plan without it takes, the best plan is told; just above it, it is found. What
    is told counts failures of the GPUs of the part, the plan those of its whole machine: some 0.04 %."""
    objective: Objective = "time" if limit == "deadline_hours" else "cost"
    question = {"global_batch": 20, "seq_len": 1000, "framework": "fsdp", "tokens": 1e9}
    model, machines = load_model("llama-3.2-1b"), load_cluster(cluster)
    free = plan(model, machines, make_job(**question, objective=objective), top=1, indifference=0.0).best.predicted
    best = free.hours_total if limit == "deadline_hours" else free.dollars_total
    assert best is not None
    below, above = (plan(model, machines, make_job(**question, **{limit: share * best}), top=1) for share in (0.9, 1.1))
    assert above.plans and not below.plans and below.infeasible is not None
    (nearest,) = (remedy for remedy in below.infeasible.remedies if isinstance(remedy, (Fastest, Cheapest)))
    assert (nearest.hours if isinstance(nearest, Fastest) else nearest.dollars) == pytest.approx(best, rel=1e-3)


def test_part_of_a_machine_beside_machines_of_another_type() -> None:
    """Plans on one type have the links of their part; those over both types may be faster than priced, which is said."""
    job = make_job(global_batch=20, seq_len=1000)
    ranking = plan(load_model("llama-3.2-1b"), load_cluster("1x1xA10+1x5xL40S"), job, top=1)
    alone = best_on("1x5xL40S")
    assert ranking.best.iteration_seconds <= alone.iteration_seconds * (1 + 1e-9)
    assert NotCovered.PARTS_OF_MACHINES in ranking.search.not_covered
    assert NotCovered.PARTS_OF_MACHINES not in plan(alone.model, alone.cluster, job, top=1).search.not_covered


def test_pins_that_part_of_a_machine_cannot_keep() -> None:
    space = parse_pins(["tp=8"])
    job = make_job(global_batch=8, seq_len=1000)
    best = plan(load_model("llama-3.2-1b"), load_cluster("1x8xL40S"), job, space=space, top=1).best
    assert {stage.tensor_parallel for stage in best.stages} == {8}
