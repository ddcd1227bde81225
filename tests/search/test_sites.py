"""Planning over several sites: pipelines are laid across the slow link, tensor parallelism and gradients never."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from shardwright import Plan, Ranking, load_model, make_job, predict
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.money import egress_dollars
from shardwright.cost.trust.evidence import unpublished
from shardwright.search.planner import plan as search
from shardwright.search.space.axes import parse_pins
from shardwright.spec.read.cluster import build_cluster

DEARER = 0.08  # dollars a gigabyte


@cache
def planned(
    gbps: float, *, model: str = "llama-2-7b", gpus: int = 4, batch: int = 64, egress: float = DEARER,
    west: str = "A100-SXM-80",
) -> Ranking:  # fmt: skip
    nodes = [
        {"count": 1, "gpu": gpu, "gpus": gpus, "site": site, "price_per_hour": 10}
        for site, gpu in (("east", "A100-SXM-80"), ("west", west))
    ]
    link = {"between": ["east", "west"], "gbps": gbps, "latency_ms": 2, "egress_dollars_per_gb": egress}
    cluster = build_cluster({"nodes": nodes, "site_links": [link]}, "two")
    job = make_job(global_batch=batch, seq_len=2048)
    return search(load_model(model), cluster, job, efficiency=Analytic(), top=1, gap=0.3)


def test_of_equal_plans_the_one_on_cheaper_machines_is_first() -> None:
    nodes = [
        {"count": 1, "gpu": "A100-SXM-80", "gpus": 4, "site": site, "price_per_hour": price}
        for site, price in (("east", 20), ("west", 10))
    ]
    cluster = build_cluster({"nodes": nodes}, "two")
    job = make_job(global_batch=64, seq_len=2048)
    alone = parse_pins(["pp=2", "vpp=2"])
    found = search(load_model("llama-2-7b"), cluster, job, efficiency=Analytic(), top=2, space=alone)
    assert [plan.stages[0].gpu for plan in found.plans] == ["A100-SXM-80@west", "A100-SXM-80@east"]


def seconds(plan: Plan | None) -> float:
    assert plan is not None
    return plan.iteration_seconds


@pytest.mark.parametrize("west", ["A100-SXM-80", "A100-SXM-40"])
def test_pipelines_cross_the_slow_link_and_nothing_else_does(west: str) -> None:
    plan = planned(20, west=west).best
    sites = plan.cluster.sites
    used = {sites[stage.gpu] for stage in plan.stages}
    assert used == {"east", "west"}
    holders: dict[int, set[str]] = {}
    for stage in plan.stages:
        for low, high in stage.layers:
            for layer in range(low, high):
                holders.setdefault(layer, set()).add(sites[stage.gpu])
    assert all(len(places) == 1 for places in holders.values())
    assert all(stage.gpus <= 4 for stage in plan.stages)


def test_both_sites_beat_either_alone() -> None:
    ranking = planned(20)
    alone = [seconds(baseline.plan) for baseline in ranking.baselines if "alone" in baseline.rule]
    assert len(alone) == 2
    assert seconds(ranking.best) < min(alone)


def test_over_a_hopeless_link_one_site_trains_alone() -> None:
    plan = planned(0.01, model="llama-3.2-1b", gpus=2, batch=16).best
    assert len({plan.cluster.sites[stage.gpu] for stage in plan.stages}) == 1
    assert egress_dollars(plan) == 0.0


def test_traffic_is_paid() -> None:
    """Both directions of every boundary between the sites, for every micro-batch of every pipeline."""
    plan = planned(20).best
    sites = plan.cluster.sites
    message = 2.0 * plan.micro_batch * 2048 * plan.model.hidden
    crossings = sum(
        replica.count
        * replica.micro_batches
        * sum(sites[a.gpu] != sites[b.gpu] for a, b in zip(replica.stages[:-1], replica.stages[1:], strict=True))
        for replica in plan.replicas
    )
    dollars = 2 * crossings * message * DEARER / 1e9
    assert egress_dollars(plan) == pytest.approx(dollars)
    hourly = dollars * 3600 / plan.iteration_seconds
    assert plan.predicted.dollars_per_hour == pytest.approx(20 + hourly)
    free = planned(20, egress=0.0).best.predicted
    assert free.dollars_per_hour == pytest.approx(20)


def test_unlike_groups_of_a_type_work_together_and_are_of_published_machines() -> None:
    nodes = [{"count": 1, "gpu": "A100-SXM-80", "gpus": 4, "inter_node_gbps": gbps} for gbps in (400, 100)]
    job = make_job(global_batch=64, seq_len=2048, framework="train")
    found = search(load_model("llama-2-7b"), build_cluster({"nodes": nodes}, "two"), job, efficiency=Analytic(), top=1)
    assert found.best.gpus_by_type == {"A100-SXM-80@1": 4, "A100-SXM-80@2": 4}
    assert not unpublished(found.best.gpus_by_type)
    alone = predict(replace(found.best, prediction=None), efficiency=Analytic())
    assert seconds(alone) == seconds(found.best)
