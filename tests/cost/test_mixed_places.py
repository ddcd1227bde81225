"""Who holds a layer of a random mixed plan and where, against a count over the ranks that run it."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from shardwright import load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.iteration.lanes import contexts_of
from shardwright.cost.iteration.links import once_seconds
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.iteration.places import places_of
from shardwright.cost.network.collectives import Fabric, Group, gather_seconds
from shardwright.plans.placement import machine_sizes
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, RankOrder, Recompute, Replica, Schedule, Stage
from shardwright.runtime.layout.groups import places_of as runtime_places
from shardwright.spec.read.cluster import build_cluster

EFFICIENCY = Analytic()
MODEL = load_model("gpt2-xl")
TYPES = ("A100-SXM-40", "V100-SXM2", "T4")
SEEDS = range(40)


def random_plan(seed: int) -> Plan:
    """Return two to four kinds of replicas, each of one to five stages on types in a row, on as many machines as they
    need."""
    pick = random.Random(seed)
    order: RankOrder = pick.choice(("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"))
    replicas = tuple(
        Replica(count=pick.randint(1, 7), micro_batches=pick.randint(1, 9), stages=_stages(pick))
        for _ in range(pick.randint(2, 4))
    )
    machine = {name: pick.choice((2, 4, 8)) for name in TYPES}
    needed = Counter(dict.fromkeys(TYPES, 1))
    for replica in replicas:
        for stage in replica.stages:
            needed[stage.gpu] += replica.count * stage.gpus
    nodes = [{"count": -(-needed[name] // machine[name]), "gpu": name, "gpus": machine[name]} for name in TYPES]
    samples = sum(replica.count * replica.micro_batches for replica in replicas)
    return Plan(
        model=MODEL,
        job=make_job(global_batch=samples, seq_len=1024, precision="fp16"),
        cluster=build_cluster({"nodes": nodes}, "test"),
        micro_batch=1,
        schedule=Schedule(),
        replicas=replicas,
        optimizer=OptimizerPlan(sharding="zero1"),
        overlap=Overlap(grad_reduce=True, param_gather=True),
        sequence_parallel=False,
        flash_attention=True,
        rank_order=order,
    )


def _stages(pick: random.Random) -> tuple[Stage, ...]:
    kinds = sorted((pick.choice(TYPES) for _ in range(pick.randint(1, 5))), key=TYPES.index)
    cuts = [0, *sorted(pick.sample(range(1, len(MODEL.layers)), len(kinds) - 1)), len(MODEL.layers)]
    degrees, context = {name: pick.choice((1, 2)) for name in TYPES}, pick.choice((1, 1, 2, 4))
    return tuple(
        Stage(
            gpu=gpu,
            tensor_parallel=degrees[gpu],
            context_parallel=context,
            expert_parallel=1,
            expert_tensor_parallel=1,
            layers=((low, high),),
            recompute=Recompute(),
        )
        for gpu, (low, high) in zip(kinds, pairwise(cuts), strict=True)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_layers_are_reduced_by_all_who_hold_some_of_them(seed):
    """At the slowest rates and longest delays among them, with the least number of ranks that any domain has."""
    plan = random_plan(seed)
    places, contexts = places_of(plan), contexts_of(plan, EFFICIENCY)
    sizes = np.linspace(1e8, 9e8, len(places.kind))
    found = once_seconds(plan, places, contexts, sizes, 0.0 * sizes)
    for stage, own in enumerate(plan.stages):
        expected = slowly(plan, own, float(sizes[stage]))
        assert found[stage] == pytest.approx(expected, rel=1e-12)


def slowly(plan: Plan, own: Stage, parameters: float) -> float:
    contexts = contexts_of(plan, EFFICIENCY)
    (low, high), domains = own.layers[0], Counter[int]()
    everyone: list[tuple[Fabric, float]] = []
    machine = [number for number, size in enumerate(machine_sizes(plan)) for _ in range(size)]
    for place in runtime_places(plan):
        stage = plan.replicas[place.replica].stages[place.stage]
        begin, end = stage.layers[0]
        if begin < high and low < end and place.tensor_rank == 0:
            everyone.append((contexts[place.gpu].links, stage.tensor_parallel / own.tensor_parallel))
            domains[machine[place.rank]] += 1
    links = contexts[own.gpu].links
    slowest = Fabric(
        **{
            **{name: getattr(links, name) for name in Fabric.__dataclass_fields__},
            "intra_bytes_per_second": min(fabric.intra_bytes_per_second * share for fabric, share in everyone),
            "inter_bytes_per_second": min(fabric.inter_bytes_per_second * share for fabric, share in everyone),
            "inter_latency_seconds": max(fabric.inter_latency_seconds for fabric, _ in everyone),
        }
    )
    group = Group(size=np.array(sum(domains.values())), local=np.array(min(domains.values())))
    return float(gather_seconds(slowest, group, np.array(parameters)))


@pytest.mark.parametrize(
    ("tp", "cp", "pp", "dp"), [(4, 2, 1, 4), (2, 4, 2, 2), (1, 2, 2, 4), (4, 1, 2, 4), (1, 1, 2, 8)]
)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v2-lite"])
def test_equal_replicas_that_are_written_apart_take_as_long_as_one_kind(name: str, tp: int, cp: int, pp: int, dp: int):
    """With stages of a copy next to each other, as all copies stand where they did; experts over tp × cp ranks."""
    model = load_model(name)
    layers, experts = len(model.layers), model.has_experts
    degrees = {"tensor_parallel": tp, "context_parallel": cp, "expert_parallel": tp * cp if experts else 1}
    stages = tuple(
        Stage(gpu="A100-SXM-80", expert_tensor_parallel=1, layers=((low, high),), recompute=Recompute(), **degrees)
        for low, high in pairwise(stage * layers // pp for stage in range(pp + 1))
    )

    def written(*counts: int) -> Plan:
        return Plan(
            model=model,
            job=make_job(global_batch=64, seq_len=8192),
            cluster=build_cluster({"nodes": [{"count": 8, "gpu": "A100-SXM-80", "gpus": 4}]}, "test"),
            micro_batch=1,
            schedule=Schedule(),
            replicas=tuple(Replica(count=count, micro_batches=64 // dp, stages=stages) for count in counts),
            optimizer=OptimizerPlan(sharding="zero1"),
            overlap=Overlap(),
            sequence_parallel=tp > 1,
            flash_attention=True,
            rank_order="tp-cp-ep-pp-dp",
        )

    one, apart = (mixed_iteration(written(*counts), EFFICIENCY).seconds for counts in ((dp,), (dp // 2, dp // 2)))
    assert apart == pytest.approx(one, rel=1e-9)
