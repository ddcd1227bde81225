"""One mesh of ranks: where each rank stands, and which plans are one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.plans.meshes import A, H, mesh

from shardwright.plans.mesh import Host, hosts, is_mesh, one_recompute
from shardwright.plans.placement import numbers_by_type, placement_of
from shardwright.plans.plan import Plan, Recompute

BLOCK = {"granularity": "full", "method": "block"}


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (mesh((4, "AH")), [Host(gpu=A, gpus=8)] * 2 + [Host(gpu=H, gpus=8)] * 2),
        (mesh((2, "HHA")), [Host(gpu=H, gpus=8)] * 2 + [Host(gpu=A, gpus=8)]),
        (mesh((2, "HA"), order="tp-cp-ep-pp-dp"), [Host(gpu=name, gpus=4) for name in (H, A, H, A)]),
        (mesh((2, "HHAA"), order="tp-cp-ep-pp-dp"), [Host(gpu=name, gpus=8) for name in (H, A, H, A)]),
        (mesh((2, "H"), (2, "A")), [Host(gpu=H, gpus=8), Host(gpu=A, gpus=8)]),  # one stage on both types
    ],
)
def test_machines_come_in_the_order_of_their_ranks(plan: Plan, expected: list[Host]) -> None:
    split = plan.rank_order == "tp-cp-ep-pp-dp" and len(plan.replicas[0].stages) == 2
    assert hosts(plan) == (None if split else tuple(expected))
    assert is_mesh(plan) is not split


def test_ranks_of_a_mesh_are_those_of_megatron() -> None:
    """tensor fastest, then data, then pipeline, over replicas of two paths (parallel_state.py of core_v0.19)."""
    plan = mesh((2, "HA"), (2, "HH"), tp=2)
    placement = placement_of(plan)
    machines = numbers_by_type(plan, placement)
    expected = []
    for rank in range(plan.gpus):
        within, copy, stage = rank % 2, rank // 2 % 4, rank // 8
        place = stage if copy < 2 else 2 + stage
        own = copy if copy < 2 else copy - 2
        expected.append(machines[placement.begin[place] + 2 * own + within])
    changes = 1 + int((np.diff(expected) != 0).sum())
    found = hosts(plan)
    assert (found is None) == (len(set(expected)) < changes)


def test_what_is_no_mesh() -> None:
    plan = mesh((4, "AH"))
    first, second = plan.replicas[0].stages
    assert not is_mesh(
        replace(plan, replicas=(replace(plan.replicas[0], stages=(first, replace(second, tensor_parallel=2))),))
    )
    other = replace(plan.replicas[0], count=1, micro_batches=4)
    assert not is_mesh(replace(plan, replicas=(*plan.replicas, other)))


def test_stages_with_fewer_layers_recompute_all_of_theirs() -> None:
    plan = mesh((4, "AH"))
    first, second = plan.replicas[0].stages
    for layers, same in ((1, True), (2, True)):
        stages = (
            replace(first, recompute=Recompute(**BLOCK, layers=2)),
            replace(second, recompute=Recompute(**BLOCK, layers=layers)),
        )
        found = one_recompute(replace(plan, replicas=(replace(plan.replicas[0], stages=stages),)))
        assert (found == Recompute(**BLOCK, layers=2)) is same
    stages = (replace(first, recompute=Recompute(**BLOCK, layers=1)), replace(second, recompute=Recompute()))
    assert one_recompute(replace(plan, replicas=(replace(plan.replicas[0], stages=stages),))) is None
