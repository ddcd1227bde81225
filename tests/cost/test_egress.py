"""What traffic between sites costs, against sums by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from shardwright import load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.money import egress_dollars
from shardwright.cost.predict import predict
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage
from shardwright.spec.read.cluster import build_cluster

MODEL = load_model("gpt2-xl")
LAYERS = len(MODEL.layers)
PRICE, GBPS = 0.05, 10


def stage(site: str, low: int, high: int) -> Stage:
    return Stage(
        gpu=f"A100-SXM-80@{site}",
        tensor_parallel=1,
        context_parallel=1,
        expert_parallel=1,
        expert_tensor_parallel=1,
        layers=((low, high),),
        recompute=Recompute(),
    )


def plan_of(
    *replicas: tuple[Stage, ...], sharding: str = "zero1", sites: str = "abc", machines: int = 1, tied: bool = True
) -> Plan:
    nodes = [{"count": machines, "gpu": "A100-SXM-80", "gpus": 4, "site": site} for site in sites]
    rates = {"gbps": GBPS, "latency_ms": 1, "egress_dollars_per_gb": PRICE}
    links = [{"between": [one, other], **rates} for one, other in pairwise(sites)]
    return Plan(
        model=replace(MODEL, tied_embeddings=tied),
        job=make_job(global_batch=4 * len(replicas), seq_len=1024),
        cluster=build_cluster({"nodes": nodes, "site_links": links}, "sites"),
        micro_batch=1,
        schedule=Schedule(),
        replicas=tuple(Replica(count=1, micro_batches=4, stages=stages) for stages in replicas),
        optimizer=OptimizerPlan(sharding=sharding),
        overlap=Overlap(),
        sequence_parallel=False,
        flash_attention=True,
    )


def test_one_site_costs_nothing() -> None:
    whole = stage("a", 0, LAYERS)
    assert egress_dollars(plan_of((whole,), (whole,))) == 0.0


@pytest.mark.parametrize(("sharding", "width"), [("zero1", 6.0), ("none", 8.0)])
def test_a_model_held_at_two_sites_reduces_over_their_link(sharding: str, width: float) -> None:
    """A ring of two copies: half of gradient and weight each way. The tied embedding is reduced at both ends."""
    plan = plan_of((stage("a", 0, LAYERS),), (stage("b", 0, LAYERS),), sharding=sharding)
    weights = MODEL.parameters + MODEL.token_table_parameters
    assert egress_dollars(plan) == pytest.approx(2 * 0.5 * width * weights * PRICE / 1e9, rel=1e-6)


def test_a_pipeline_pays_for_every_site_on_its_way() -> None:
    """a to c leads over b: two links are paid each way."""
    plan = plan_of((stage("a", 0, 10), stage("c", 10, LAYERS)), sharding="none", tied=False)
    message = 2.0 * 1024 * MODEL.hidden
    assert egress_dollars(plan) == pytest.approx(4 * 2 * message * 2 * PRICE / 1e9)


@pytest.mark.parametrize(("precision", "width"), [("bf16", 1.0), ("fp32", 2.0)])
def test_activations_between_sites_have_the_width_of_the_job(precision, width):
    """Only activations cross: the one replica's stages stand at two sites."""
    plan = plan_of((stage("a", 0, 10), stage("c", 10, LAYERS)), sharding="none", tied=False)
    wide = egress_dollars(replace(plan, job=replace(plan.job, precision=precision)))
    assert wide == pytest.approx(width * egress_dollars(replace(plan, job=replace(plan.job, precision="bf16"))))


@pytest.mark.parametrize(("framework", "width"), [("megatron", 4 * 4.0), ("train", 6.0 * 7 / 8)])
def test_a_tied_embedding_takes_as_long_as_what_is_paid_for(framework, width):
    """Four pipelines with its ends at two sites: Megatron-LM adds up the gradients of each, `train` all eight copies in
    a ring, and gathers the weights."""
    plan = plan_of((stage("a", 0, 10), stage("b", 10, LAYERS)))
    job = replace(plan.job, global_batch=16, framework=framework)
    plan = replace(plan, job=job, replicas=(replace(plan.replicas[0], count=4),))
    each_way = width * MODEL.token_table_parameters
    paid = egress_dollars(plan) - egress_dollars(replace(plan, model=replace(MODEL, tied_embeddings=False)))
    assert paid == pytest.approx(2 * each_way * PRICE / 1e9)
    (replica,) = mixed_iteration(plan, Analytic()).replicas
    (free,) = mixed_iteration(replace(plan, model=replace(MODEL, tied_embeddings=False)), Analytic()).replicas
    assert free.tied_seconds == 0.0
    assert replica.tied_seconds == pytest.approx(each_way / (GBPS * 1e9 / 8) + 2e-3)


def test_all_ranks_of_a_stage_share_the_link_between_sites():
    """Two GPUs a stage, by halves of the matrices or of the sequence: the same activation crosses."""
    plan = plan_of((stage("a", 0, 10), stage("b", 10, LAYERS)))

    def crossing(**degrees: int) -> float:
        stages = tuple(replace(each, **degrees) for each in plan.replicas[0].stages)
        split = replace(plan, replicas=(replace(plan.replicas[0], stages=stages),))
        (replica,) = mixed_iteration(split, Analytic()).replicas
        return float(replica.transfers[0])

    assert crossing(context_parallel=2) == crossing(tensor_parallel=2) > 0.9 * crossing()


@pytest.mark.parametrize("machines", [1, 2, 8])
def test_gradients_between_sites_take_as_long_as_what_is_paid_for(machines):
    """As many rings as a machine has GPUs share the link, each with its part of the gradients, however many machines
    they pass."""
    whole = (stage("a", 0, LAYERS),), (stage("b", 0, LAYERS),)
    plan = plan_of(*whole, sites="ab", machines=machines)
    copies = tuple(replace(replica, count=4 * machines) for replica in plan.replicas)
    plan = replace(plan, replicas=copies, job=replace(plan.job, global_batch=32 * machines))
    each_way = egress_dollars(plan) / PRICE * 1e9 / 2
    found = predict(plan, Analytic())
    assert found.time.data_parallel_seconds == pytest.approx(each_way / (GBPS * 1e9 / 8), rel=0.1)
