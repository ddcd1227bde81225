"""One placement: what cost, runtime and the Megatron-LM exporter make of it, on random plans under both rank orders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plans.random_plans import uniform_plans
from tests.runtime.random_plans import plans

from shardwright import check, load_model, make_job, to_megatron
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.iteration.places import places_of as stage_places
from shardwright.cost.learned import default_efficiency
from shardwright.plans.placement import COPIES_TOGETHER, STAGES_TOGETHER, machine_sizes
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, RankOrder, Recompute, Replica, Schedule, Stage
from shardwright.runtime.layout.groups import places_of
from shardwright.spec.read.cluster import build_cluster

RANK_ORDERS: tuple[RankOrder, ...] = (COPIES_TOGETHER, STAGES_TOGETHER)
Where = tuple[str, int, int]  # GPU type, machine of the type, slot


def groups(plan: Plan) -> Iterator[tuple[tuple[int, int, int, int], Stage]]:
    """Yield (replica, stage, copy, part of the sequence) of every tensor-parallel group as they are given GPUs."""
    for number, replica in enumerate(plan.replicas):
        pairs = list(product(range(len(replica.stages)), range(replica.count)))
        if plan.rank_order == STAGES_TOGETHER:
            pairs.sort(key=lambda pair: (pair[1], pair[0]))
        for stage, copy in pairs:
            for part in range(replica.stages[stage].context_parallel):
                yield (number, stage, copy, part), replica.stages[stage]


def gpu_by_gpu(plan: Plan) -> dict[tuple[int, int, int, int, int], Where]:
    """Return where each GPU stands, by replica, stage, copy, part and tensor-parallel rank: every group on the first
    machine with room, else on the next free GPUs."""
    free = {
        (pool.gpu.name, machine): list(range(pool.gpus_per_node))
        for pool in plan.cluster.pools
        for machine in range(pool.nodes)
    }
    found = {}
    for group, stage in groups(plan):
        mine = [key for key in free if key[0] == stage.gpu]
        roomy = next((key for key in mine if len(free[key]) >= stage.tensor_parallel), None)
        for rank in range(stage.tensor_parallel):
            key = roomy or next(key for key in mine if free[key])
            found[*group, rank] = (*key, free[key].pop(0))
    return found


def machine_of_rank(plan: Plan) -> list[int]:
    """Return the machine of each rank, machines that the plan leaves out not counted."""
    return [number for number, size in enumerate(machine_sizes(plan)) for _ in range(size)]


def narrow(plan: Plan, gpus_per_node: int) -> Plan:
    """Return the plan on smaller machines, as many as it has GPUs."""
    pools = tuple(
        replace(pool, nodes=plan.gpus, gpus_per_node=gpus_per_node, domain_gpus=gpus_per_node)
        for pool in plan.cluster.pools
    )
    return replace(plan, cluster=replace(plan.cluster, pools=pools))


@given(plans(largest_count=5), st.sampled_from(RANK_ORDERS), st.sampled_from([2, 3, 6, 8]))
def test_the_runtime_puts_ranks_where_gpus_are_given_out_one_by_one(plan: Plan, order: RankOrder, size: int) -> None:
    plan = narrow(replace(plan, rank_order=order), size)
    expected = gpu_by_gpu(plan)
    assert check(plan) == () and len(set(expected.values())) == plan.gpus
    types = [pool.gpu.name for pool in plan.cluster.pools]
    ranked = sorted(expected, key=lambda key: (types.index(expected[key][0]), *expected[key][1:]))
    places = places_of(plan)
    assert [(p.replica, p.stage, p.copy, p.context_rank, p.tensor_rank) for p in places] == ranked
    machines = dict.fromkeys(expected[key][:2] for key in ranked)
    assert machine_of_rank(plan) == [list(machines).index(expected[key][:2]) for key in ranked]


@given(plans(largest_count=5), st.sampled_from(RANK_ORDERS), st.sampled_from([2, 3, 6, 8]))
def test_the_cost_model_sees_every_tensor_parallel_group_where_it_runs(plan: Plan, order: RankOrder, size: int) -> None:
    plan = narrow(replace(plan, rank_order=order), size)
    expected = gpu_by_gpu(plan)
    stages = [(number, stage) for number, replica in enumerate(plan.replicas) for stage in range(len(replica.stages))]
    places = stage_places(plan)
    wanted = [
        (*stages[s], copy, part, 0)
        for s, (count, cp) in enumerate(zip(places.count, places.cp, strict=True))
        for copy in range(count)
        for part in range(cp)
    ]
    stage, first = places.placement.first_of_groups(places.tp)
    assert [stages[s] for s in stage] == [key[:2] for key in wanted]
    assert [divmod(int(gpu), size) for gpu in first] == [expected[key][1:] for key in wanted]
    assert places.first.tolist() == [gpu for key, gpu in zip(wanted, first, strict=True) if key[2:4] == (0, 0)]


@given(uniform_plans(), st.sampled_from([4, 8]))
def test_megatron_numbers_its_ranks_as_the_placement_does(plan: Plan, size: int) -> None:
    """Megatron-LM nests its groups, the first of the order innermost, and torchrun numbers ranks machine by machine."""
    plan = narrow(plan, size)
    (replica,) = plan.replicas
    stage, depth = replica.stages[0], len(replica.stages)
    numbered = {}
    for place in places_of(plan):
        outer = (place.copy * depth + place.stage, place.stage * replica.count + place.copy)
        group = outer[plan.rank_order == COPIES_TOGETHER] * stage.context_parallel + place.context_rank
        numbered[place.rank] = group * stage.tensor_parallel + place.tensor_rank
    assert all(rank == megatron for rank, megatron in numbered.items())
    assert to_megatron(plan).machine_gpus == machine_sizes(plan)


def llama_on_two_types(order: RankOrder) -> Plan:
    """Llama-2-70B on 2 × 8 H100 and 2 × 8 A100: four copies of one replica, four stages of two GPUs."""
    cuts, types = (0, 28, 55, 68, 80), ("H100-SXM", "H100-SXM", "A100-SXM-80", "A100-SXM-80")
    degrees = {"tensor_parallel": 2, "context_parallel": 1, "expert_parallel": 1, "expert_tensor_parallel": 1}
    stages = tuple(
        Stage(gpu=gpu, layers=((low, high),), recompute=Recompute(), **degrees)
        for gpu, low, high in zip(types, cuts, cuts[1:], strict=False)
    )
    nodes = [{"count": 2, "gpu": gpu, "gpus": 8} for gpu in dict.fromkeys(types)]
    return Plan(
        model=load_model("llama-2-70b"),
        job=make_job(global_batch=32, seq_len=4096, precision="bf16"),
        cluster=build_cluster({"nodes": nodes}, "test"),
        micro_batch=1,
        schedule=Schedule(),
        replicas=(Replica(count=4, micro_batches=8, stages=stages),),
        optimizer=OptimizerPlan(sharding="zero1"),
        overlap=Overlap(grad_reduce=True, param_gather=True),
        sequence_parallel=True,
        flash_attention=True,
        rank_order=order,
    )


@pytest.mark.parametrize(("order", "ranks"), [(COPIES_TOGETHER, [0, 2, 4, 6]), (STAGES_TOGETHER, [0, 4, 8, 12])])
def test_a_mixed_plan_runs_in_its_rank_order(order: RankOrder, ranks: list[int]) -> None:
    assert [p.rank for p in places_of(llama_on_two_types(order)) if p.stage == p.tensor_rank == 0] == ranks


def test_the_price_of_a_mixed_plan_is_that_of_its_rank_order() -> None:
    """Copies of a stage on one machine reduce its gradients inside it."""
    together, apart = (mixed_iteration(llama_on_two_types(each), default_efficiency()).seconds for each in RANK_ORDERS)
    assert 1.05 < apart / together < 1.35
