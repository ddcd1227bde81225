"""What a machine profile says of GPUs and links is what programs are priced with, and decides how tensors are sent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.cli.running import refused, run
from tests.spmd.steps import traced

from shardwright import SpecError, load_cluster
from shardwright.cost.compute.efficiency import KERNEL_SECONDS
from shardwright.cost.network.collectives import SECONDS, Fabric, Group
from shardwright.spec.read.machine_profile import CollectiveTime, MachineProfile, OperatorTime
from shardwright.spmd.synthesize import launch_seconds, machines_of
from shardwright.synthesis.graph import COMPUTE, FREE, REPLICATED, Sharded
from shardwright.synthesis.machines import conversion
from shardwright.synthesis.synthesize import launched, synthesize

CLUSTER = load_cluster("2x4xV100-SXM2")
GPU = CLUSTER.pools[0].gpu
LAYERS = Path(__file__).parents[1] / "data" / "opt-350m-layers.json"


def profile(intra: float, inter: float) -> MachineProfile:
    """Return the profile of a machine whose products reach 0.3 of the peak, over links of 20 µs and so many bytes a
    second, a GPU."""
    links = Fabric(
        domain_gpus=4,
        intra_bytes_per_second=intra,
        intra_latency_seconds=2e-5,
        inter_bytes_per_second=inter,
        inter_latency_seconds=2e-5,
    )
    peak = GPU.peak("fp32")
    assert peak is not None
    sizes = [1024, 2048, 4096, 8192]
    products = [
        OperatorTime(
            kind="gemm", direction="forward", dtype="fp32", seconds=2.0 * size**3 / (0.3 * peak),
            m=size, n=size, k=size, groups=1,
        )
        for size in sizes
    ]  # fmt: skip
    sent = [
        CollectiveTime(
            collective="all_reduce", scope=scope, ranks=ranks, bytes=size,
            seconds=float(SECONDS["all_reduce"](links, group, np.array([float(size)]))[0]),
        )
        for scope, ranks, group in (
            ("intra_node", 4, Group(size=np.array([4]), local=np.array([4]))),
            ("inter_node", 2, Group(size=np.array([2]), local=np.array([1]))),
        )
        for size in (2**16, 2**20, 2**24, 2**28)
    ]  # fmt: skip
    return MachineProfile(
        gpu=GPU, device="V100", backend="cuda", count=4, memory_bytes=16e9,
        operators=tuple(products), collectives=tuple(sent),
    )  # fmt: skip


def test_gpus_and_links_are_as_measured() -> None:
    found = machines_of(CLUSTER, "fp32", 0.5, [profile(5e9, 1e9)])
    peak = GPU.peak("fp32")
    assert peak is not None
    assert found.flops_per_second == pytest.approx([0.3 * peak] * 8)
    assert found.machines[0].link_bytes_per_second == pytest.approx(5e9, rel=0.02)
    assert found.network_bytes_per_second == pytest.approx(4e9, rel=0.02)
    assert found.network_latency_seconds == pytest.approx(2e-5, rel=0.05)
    plain = machines_of(CLUSTER, "fp32", 0.5)
    assert plain.flops_per_second == pytest.approx([0.5 * peak] * 8)
    assert plain.machines[0].link_bytes_per_second == CLUSTER.pools[0].intra_bytes_per_second


@pytest.mark.parametrize(("rate", "way"), [(100e9, "all_gather_padded"), (5e7, "all_gather_grouped")])
def test_a_measured_link_decides_how_shards_are_gathered(rate: float, way: str) -> None:
    """Padded shards are one call, and twice the bytes here."""
    net = machines_of(CLUSTER, "fp32", 0.5, [profile(rate, rate)])
    shares = np.array([1, 1, 1, 1, 0, 0, 0, 0]) / 4
    assert conversion(net, 1e6, Sharded(0, 4, COMPUTE), REPLICATED, lambda _: shares).method == way


def test_launches_are_the_least_that_a_step_takes() -> None:
    """Of operators too small for anything else, and nothing beside those of seconds."""
    graph, net = traced("bert").graph, machines_of(CLUSTER, "fp32", 0.5)
    operators = sum(node.op not in FREE for node in graph.nodes)
    least = operators * launch_seconds(GPU)
    found = synthesize(graph, net)
    assert least <= found.bound_seconds <= found.seconds < 1.5 * least
    assert launched(graph, net, 100 * least) == pytest.approx(100 * least, rel=1e-6)
    assert net.machines[0].device.operator_seconds == KERNEL_SECONDS < least / operators


def test_profiles_of_other_things_are_refused() -> None:
    with pytest.raises(SpecError, match="is of V100-SXM2, the cluster has RTX4090"):
        machines_of(load_cluster("1x2x4090"), "fp32", 0.5, [profile(5e9, 1e9)])
    message = refused(run(["spmd", "plan", "none:task", "--cluster", "1x2xV100-SXM2", "--profile", str(LAYERS)]))
    assert "has layers of a model" in message and "shardwright profile" in message
