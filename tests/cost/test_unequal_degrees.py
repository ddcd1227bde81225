"""What tensor-parallel degrees that differ within a plan cost: messages, gradients, a tied embedding, memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright import check, load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.context import Context
from shardwright.cost.iteration.mixed import Mixed, mixed_iteration
from shardwright.cost.network.collectives import transfer_seconds
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage
from shardwright.spec.read.cluster import build_cluster

EFFICIENCY = Analytic()
FAST, SLOW = "H100-SXM", "A100-SXM-80"
MODEL = load_model("llama-2-7b")


def plan_of(*replicas: tuple[tuple[str, int, int], ...], sequence: bool = True, tied: bool = False) -> Plan:
    """Return a plan of replicas of stages (GPU type, degree, layers), with 8 micro-batches each."""
    nodes = [{"count": 1, "gpu": gpu, "gpus": 8, "inter_node_gbps": gbps} for gpu, gbps in ((FAST, 400), (SLOW, 100))]
    several = len(replicas) > 1
    return Plan(
        model=replace(MODEL, tied_embeddings=tied),
        job=make_job(global_batch=8 * len(replicas), seq_len=2048),
        cluster=build_cluster({"nodes": nodes}, "test"),
        micro_batch=1,
        schedule=Schedule(),
        replicas=tuple(Replica(count=1, micro_batches=8, stages=_stages(stages)) for stages in replicas),
        optimizer=OptimizerPlan(sharding="zero1" if several else "none"),
        overlap=Overlap(),
        sequence_parallel=sequence,
        flash_attention=True,
    )


def _stages(stages: tuple[tuple[str, int, int], ...]) -> tuple[Stage, ...]:
    starts = np.cumsum([0, *(layers for _, _, layers in stages)]).tolist()
    return tuple(
        Stage(
            gpu=gpu,
            tensor_parallel=tp,
            context_parallel=1,
            expert_parallel=1,
            expert_tensor_parallel=1,
            layers=((start, start + layers),),
            recompute=Recompute(),
        )
        for start, (gpu, tp, layers) in zip(starts[:-1], stages, strict=True)
    )


def timed(plan: Plan) -> Mixed:
    assert check(plan) == ()
    return mixed_iteration(plan, EFFICIENCY)


def message(plan: Plan, gpu: str, size: float) -> float:
    """Return the seconds in which a GPU of a type sends so many bytes to another machine."""
    pool = next(pool for pool in plan.cluster.pools if pool.gpu.name == gpu)
    links = Context(model=plan.model, pool=pool, job=plan.job, efficiency=EFFICIENCY).links
    return float(transfer_seconds(links, np.array([size]), np.array([True]))[0])


WHOLE = 2.0 * 2048 * MODEL.hidden  # bytes of an activation


@pytest.mark.parametrize(("fast", "slow"), [(4, 1), (1, 4), (8, 2), (4, 4)])
def test_each_side_of_a_message_moves_its_part_over_its_links(fast, slow):
    plan = plan_of(((FAST, fast, 16), (SLOW, slow, 16)))
    expected = max(message(plan, FAST, WHOLE / fast), message(plan, SLOW, WHOLE / slow))
    assert timed(plan).replicas[0].transfers[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("fast", "slow"), [(4, 1), (1, 4), (8, 2)])
def test_without_sequence_parallelism_every_rank_is_sent_the_whole(fast, slow):
    plan = plan_of(((FAST, fast, 16), (SLOW, slow, 16)), sequence=False)
    sent = {True: WHOLE * max(fast, slow) / min(fast, slow), False: WHOLE}
    expected = max(message(plan, FAST, sent[fast < slow]), message(plan, SLOW, sent[slow < fast]))
    assert timed(plan).replicas[0].transfers[0] == pytest.approx(expected, rel=1e-12)


def tails(plan: Plan) -> list[float]:
    return [float(replica.tails.max()) for replica in timed(plan).replicas]


def test_holders_of_unequal_degree_wait_for_each_other():
    """The parts of a layer go at one pace whatever the degree of a holder: that of the rank with most of them."""
    wide, narrow = tails(plan_of(((FAST, 4, 32),), ((SLOW, 1, 32),)))
    assert wide == pytest.approx(narrow, rel=0.02)
    alike = tails(plan_of(((FAST, 4, 32),), ((SLOW, 4, 32),)))
    assert wide > 3.0 * alike[0]


def test_four_ranks_with_slow_links_carry_as_much_as_one_with_fast_links():
    """The H100 machine has four times the network of the other, so that one of its GPUs keeps pace with four A100s."""
    one, four = (tails(plan_of(((FAST, tp, 32),), ((SLOW, 4, 32),)))[1] for tp in (1, 4))
    assert one == pytest.approx(four, rel=0.02)


@pytest.mark.parametrize(("fast", "slow"), [(4, 1), (1, 8), (4, 4)])
def test_the_slower_end_of_a_tied_embedding_counts(fast, slow):
    plan, size = plan_of(((FAST, fast, 16), (SLOW, slow, 16)), tied=True), 4.0 * MODEL.vocab * MODEL.hidden
    expected = max(message(plan, FAST, size / fast), message(plan, SLOW, size / slow))
    assert timed(plan).replicas[0].tied_seconds == pytest.approx(expected, rel=1e-12)


def test_ranks_with_several_shards_of_a_layer_keep_its_weights_twice():
    alike, unlike = (timed(plan_of(((FAST, 4, 32),), ((SLOW, tp, 32),))) for tp in (4, 1))
    apart = timed(plan_of(((FAST, 4, 16), (SLOW, 1, 16))))
    assert unlike.replicas[0].memory.weights[0] == alike.replicas[0].memory.weights[0]
    assert unlike.replicas[1].memory.weights[0] == pytest.approx(2 * 4 * alike.replicas[1].memory.weights[0], rel=0.01)
    assert apart.replicas[0].memory.weights[1] < unlike.replicas[1].memory.weights[0] / 3
