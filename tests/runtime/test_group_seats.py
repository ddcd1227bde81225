"""Processes take the places whose GPUs they have, in whatever order machines arrive."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.plans import cluster_of
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright import Cluster, Plan, SpecError, load_cluster
from shardwright.runtime.job.seats import DeviceReport, seats
from shardwright.runtime.layout.groups import layout_of
from shardwright.spec.catalog.gpus import gpus

A100, H100 = gpus()["A100-SXM-80"], gpus()["H100-SXM"]
MODEL = tiny_model(4)


def mixed() -> Plan:
    """Two machines of eight H100 and one of eight A100, of which four are used."""
    (pool,) = cluster_of(1).pools
    cluster = Cluster(pools=(replace(pool, gpu=H100, nodes=2), replace(pool, gpu=A100, nodes=1)), name="mixed")
    fast = replica(stage((0, 4), tp=8, gpu=H100.name), count=2, micro_batches=2)
    slow = replica(stage((0, 4), tp=4, gpu=A100.name), micro_batches=1)
    return plan_of(tiny_model(4, heads=8, kv_heads=8), fast, slow, cluster=cluster)


def reports(machine: str, gpu: str, count: int, memory: float = 84e9) -> list[DeviceReport]:
    return [DeviceReport(machine=machine, device=f"NVIDIA {gpu}", gpu=gpu, memory_bytes=memory)] * count


AS_PLANNED = [*reports("a", H100.name, 8), *reports("b", H100.name, 8), *reports("c", A100.name, 4)]


def test_machines_in_the_order_of_the_plan_keep_it() -> None:
    assert seats(layout_of(mixed()), AS_PLANNED) == tuple(range(20))


@given(st.permutations(range(20)))
def test_any_order_of_arrival_seats_every_process_where_its_gpu_belongs(order: list[int]) -> None:
    layout = layout_of(mixed())
    arrived = [AS_PLANNED[number] for number in order]
    found = seats(layout, arrived)
    assert sorted(found) == list(range(20))
    for process, place in enumerate(found):
        assert layout.places[place].gpu == arrived[process].gpu
    for ranks in (range(8), range(8, 16)):  # a tensor-parallel group stays on one machine
        assert len({arrived[found.index(rank)].machine for rank in ranks}) == 1


def test_gpus_of_other_types_are_refused_with_what_would_do() -> None:
    other = [*reports("a", A100.name, 8), *reports("b", H100.name, 8), *reports("c", A100.name, 4)]
    with pytest.raises(SpecError) as found:
        seats(layout_of(mixed()), other)
    assert "a has 8 x A100-SXM-80; b has 8 x H100-SXM; c has 4 x A100-SXM-80" in str(found.value)
    assert "2 with 8 x H100-SXM (ranks 0 to 15); 1 with 4 x A100-SXM-80 (ranks 16 to 19)" in str(found.value)


def test_machines_of_another_size_and_gpus_with_less_memory_are_refused() -> None:
    halves = [report for name in "abcd" for report in reports(name, H100.name, 4)]
    with pytest.raises(SpecError, match="a has 4 x H100-SXM"):
        seats(layout_of(mixed()), [*halves, *reports("e", A100.name, 4)])
    small = [*AS_PLANNED[:16], *reports("c", A100.name, 4, memory=42e9)]
    with pytest.raises(SpecError, match="has 42 GB, the plan counts on 8"):
        seats(layout_of(mixed()), small)


def joined(nvlink: float | None, *, tp: int, intra: float | None = None) -> tuple[int, ...]:
    """Return the seats of two H100s of one machine with so much NVLink, where the plan counts on `intra`."""
    (pool,) = cluster_of(1).pools
    pool = replace(pool, gpu=H100, intra_bytes_per_second=H100.link_bytes_per_second if intra is None else intra)
    places = replica(stage((0, 4), tp=tp, gpu=H100.name), count=2 // tp, micro_batches=1)
    plan = plan_of(MODEL, places, cluster=replace(cluster_of(1), pools=(pool,)))
    seen = replace(reports("a", H100.name, 1)[0], nvlink_bytes_per_second=nvlink)
    return seats(layout_of(plan), [seen] * 2)


def test_a_machine_without_the_nvlink_that_tensor_parallelism_was_planned_with_is_refused() -> None:
    with pytest.raises(SpecError, match="a has no NVLink, the plan counts on 450 GB/s between its GPUs"):
        joined(0.0, tp=2)
    with pytest.raises(SpecError, match="a has 106 GB/s of NVLink"):
        joined(4 * 26.562e9, tp=2)
    for nvlink in (None, 18 * 26.562e9, 14 * 26.562e9):  # nobody says, all ports, some down
        assert joined(nvlink, tp=2) == (0, 1)
    assert joined(0.0, tp=1) == (0, 1), "no two ranks compute a layer together"
    assert joined(0.0, tp=2, intra=H100.pcie_bytes_per_second) == (0, 1), "the plan knew"


def test_a_gpu_that_the_plan_describes_itself_may_be_any_unknown_one() -> None:
    (pool,) = cluster_of(1).pools
    cluster = Cluster(pools=(replace(pool, gpu=replace(H100, name="ours")),), name="own")
    plan = plan_of(MODEL, replica(stage((0, 4), tp=2, gpu="ours"), micro_batches=1), cluster=cluster)
    unknown = [DeviceReport(machine="a", device="Prototype", gpu=None, memory_bytes=84e9)] * 2
    assert seats(layout_of(plan), unknown) == (0, 1)
    plain = plan_of(
        MODEL,
        replica(stage((0, 4), tp=2, gpu=H100.name), micro_batches=1),
        cluster=replace(cluster, pools=(replace(pool, gpu=H100),)),
    )
    with pytest.raises(SpecError, match="a has 2 x Prototype"):
        seats(layout_of(plain), unknown)


def test_cpus_stand_for_any_gpu() -> None:
    cpu = DeviceReport(machine="a", device="CPU", gpu=None, memory_bytes=0.0, cpu=True)
    assert seats(layout_of(mixed()), [cpu] * 20) == tuple(range(20))


def in_boxes() -> Plan:
    """A pipeline over the three GPUs of each of two machines, and a replica on the card of a third one."""
    cluster = load_cluster("2x(2xRTXA5000+1xRTX3080Ti)+1x1xRTX3080Ti")
    first, second, alone = (pool.gpu.name for pool in cluster.pools)
    path = [stage((place, place + 1), gpu=gpu) for place, gpu in enumerate((first, first, second))]
    single = replica(stage((0, 3), gpu=alone), micro_batches=2)
    return plan_of(tiny_model(3), replica(*path, count=2, micro_batches=2), single, cluster=cluster)


@given(st.permutations(["one", "two", "three"]), st.permutations(range(7)))
def test_gpus_of_several_types_in_a_machine_stay_together(machines: list[str], order: list[int]) -> None:
    """Whatever comes first, no place of a machine with two types is taken by the card of another machine."""
    small, large = reports("", "RTX3080Ti", 1, 12.9e9), reports("", "RTXA5000", 2, 26e9)
    at_hand = [
        *(replace(report, machine=machines[0]) for report in [*small, *large]),
        *(replace(report, machine=machines[1]) for report in small),
        *(replace(report, machine=machines[2]) for report in [*large, *small]),
    ]
    arrived, layout = [at_hand[number] for number in order], layout_of(in_boxes())
    taken = seats(layout, arrived)
    assert sorted(taken) == list(range(7))
    there = [arrived[taken.index(rank)] for rank in range(7)]
    assert [place.gpu.partition("@")[0] for place in layout.places] == [report.gpu for report in there]
    for ranks in (range(3), range(3, 6)):
        assert len({there[rank].machine for rank in ranks}) == 1
