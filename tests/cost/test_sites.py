"""What collectives wait for links between sites, against rings run message by message."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from shardwright import load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.iteration.links import ring_delays, unit_delays
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.iteration.places import places_of
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage
from shardwright.spec.read.cluster import build_cluster

MODEL = load_model("gpt2-xl")
LAYERS = len(MODEL.layers)
MILLISECONDS = 30.0


def plan_over(sites: str, *, machines: int, gpus: int = 4, latency_ms: float = MILLISECONDS) -> Plan:
    """Return data parallelism over all GPUs of equal machines at each of the sites."""
    nodes = [{"count": machines, "gpu": "A100-SXM-80", "gpus": gpus, "site": site} for site in sites]
    rates = {"gbps": 1000, "latency_ms": latency_ms}
    links = [{"between": [one, other], **rates} for one, other in pairwise(sites)]
    stage = Stage(
        gpu="", tensor_parallel=1, context_parallel=1, expert_parallel=1, expert_tensor_parallel=1,
        layers=((0, LAYERS),), recompute=Recompute(),
    )  # fmt: skip
    copies, cluster = machines * gpus, build_cluster({"nodes": nodes, "site_links": links}, "sites")
    return Plan(
        model=MODEL,
        job=make_job(global_batch=len(sites) * copies, seq_len=1024),
        cluster=cluster,
        micro_batch=1,
        schedule=Schedule(),
        replicas=tuple(
            Replica(count=copies, micro_batches=1, stages=(replace(stage, gpu=pool.gpu.name),))
            for pool in cluster.pools
        ),
        optimizer=OptimizerPlan(sharding="zero1"),
        overlap=Overlap(grad_reduce=False, param_gather=False),
        sequence_parallel=False,
        flash_attention=True,
    )


def run_ring(delays: np.ndarray, collectives: int) -> float:
    """Return when the last of several all-gathers is over: link i leads to rank i, a rank sends on what it has received,
    and begins a collective when it has all parts of the one before. Only the way takes time."""
    done = np.zeros(len(delays))
    for _ in range(collectives):
        begin, has = done, done
        for _ in range(len(delays) - 1):
            has = np.maximum(np.roll(has, 1) + delays, begin)
        done = has
    return float(done.max())


@pytest.mark.parametrize(
    ("sites", "machines", "gpus"),
    [("ab", 1, 1), ("ab", 1, 4), ("ab", 1, 8), ("ab", 8, 4), ("abc", 1, 1), ("abc", 2, 4)],
)
def test_a_ring_waits_once_for_each_link_between_sites(sites, machines, gpus):
    """However many ranks it has. Between the first site and the last the way leads over those between them."""
    plan, copies = plan_over(sites, machines=machines, gpus=gpus), machines * gpus
    delays = np.zeros(len(sites) * copies)
    delays[::copies] = MILLISECONDS * 1e-3
    delays[0] *= len(sites) - 1
    found = ring_delays(plan, places_of(plan))
    assert found == pytest.approx(run_ring(delays, 1))
    if copies > 1:  # of n ranks one is a collective ahead of its neighbour
        assert unit_delays(plan, places_of(plan)) == pytest.approx(run_ring(delays, LAYERS + 2), rel=2 / len(delays))


@pytest.mark.parametrize("sharding", ["zero1", "none"])
@pytest.mark.parametrize("machines", [1, 8])
def test_every_unit_waits_there_and_back_for_gradients_and_for_weights(machines, sharding):
    def seconds(latency_ms: float) -> float:
        plan = plan_over("ab", machines=machines, latency_ms=latency_ms)
        return mixed_iteration(replace(plan, optimizer=OptimizerPlan(sharding=sharding)), Analytic()).seconds

    back_and_forth = 2 * MILLISECONDS * 1e-3
    norm = back_and_forth
    assert seconds(MILLISECONDS) - seconds(0) == pytest.approx(2 * (LAYERS + 2) * back_and_forth + norm)


def test_layer_by_layer_each_gather_and_each_scatter_waits():
    def seconds(latency_ms: float) -> float:
        plan = plan_over("ab", machines=8, latency_ms=latency_ms)
        replicas = tuple(replace(each, state=1) for each in plan.replicas)
        optimizer, schedule = OptimizerPlan(sharding="zero3", parts=plan.gpus), Schedule(kind="layered")
        layered = replace(plan, replicas=replicas, optimizer=optimizer, schedule=schedule)
        return mixed_iteration(layered, Analytic()).seconds

    back_and_forth = 2 * MILLISECONDS * 1e-3
    collectives = 3 * (LAYERS + 2) - 1  # of the head's weights there is one gather for both passes
    assert seconds(MILLISECONDS) - seconds(0) == pytest.approx(collectives * back_and_forth + back_and_forth)


@pytest.mark.parametrize(("sites", "messages"), [("ab", 1), ("aab", 1), ("aba", 2), ("abab", 3)])
def test_a_pipeline_sends_a_message_each_time_that_it_crosses(sites, messages):
    """Over a link that everything else is fast beside."""
    kinds = ("A100-SXM-80", "H100-SXM", "H20", "A800-SXM-80")
    nodes = [{"count": 1, "gpu": gpu, "gpus": 4, "site": site} for gpu, site in zip(kinds, sites, strict=False)]
    links = [{"between": ["a", "b"], "gbps": 0.01, "latency_ms": 0}]
    plan = plan_over("ab", machines=1)
    cuts = [round(place * LAYERS / len(sites)) for place in range(len(sites) + 1)]
    stage = plan.stages[0]
    stages = [replace(stage, gpu=gpu, layers=(ends,)) for gpu, ends in zip(kinds, pairwise(cuts), strict=False)]
    replica = Replica(count=4, micro_batches=1, stages=tuple(stages))
    plan = replace(
        plan,
        job=make_job(global_batch=4, seq_len=1024),
        cluster=build_cluster({"nodes": nodes, "site_links": links}, "sites"),
        replicas=(replica,),
    )
    pipeline = mixed_iteration(plan, Analytic()).replicas[0]
    activation = 2 * 1024 * MODEL.hidden
    crossing = [seconds for seconds in pipeline.transfers if seconds > 0.1]
    assert len(crossing) == messages
    assert crossing == pytest.approx([4 * messages * activation / (0.01e9 / 8)] * messages)


def test_one_site_waits_for_nothing():
    plan = plan_over("a", machines=2)
    assert not unit_delays(plan, places_of(plan)).any()
