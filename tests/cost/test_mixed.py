"""The exact iteration of a plan equals the vectorised one of many rows on uniform plans, and behaves on mixed ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright import load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.context import Context
from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.predict import predict
from shardwright.cost.strategies import Strategies, plan_of_row, row_of
from shardwright.plans.plan import Plan, Replica, Stage
from shardwright.search.planner import plan as search
from shardwright.search.space.axes import parse_pins
from shardwright.spec.read.cluster import build_cluster, load_cluster

EFFICIENCY = Analytic()
CASES: tuple[tuple[str, str, int, dict[str, tuple[object, ...]]], ...] = (
    ("llama-2-7b", "2x8xA100-SXM-80", 64, {}),
    ("llama-2-13b", "4x8xH100-SXM", 64, {"pp": (4,)}),
    ("opt-1.3b", "1x8xA100-SXM-40", 32, {"pp": (2, 4)}),
    ("mixtral-8x7b", "4x8xH100-SXM", 64, {}),
    ("llama-2-7b", "2x8xA100-SXM-80", 64, {"sharding": ("zero3",)}),
)


def cluster_of(*groups: tuple[int, str, int]):
    return build_cluster({"nodes": [{"count": n, "gpu": gpu, "gpus": each} for n, gpu, each in groups]}, "test")


def seconds(plan: Plan) -> float:
    return mixed_iteration(plan, EFFICIENCY).seconds


@pytest.mark.parametrize(("model", "machines", "batch", "pins"), CASES)
def test_many_rows_at_once_are_accounted_as_each_plan_alone(model, machines, batch, pins):
    """Seconds and peaks of the vectorised verdict are those of the account of a single plan, and a plan gives its row
    back."""
    space = parse_pins([f"{name}={','.join(map(str, values))}" for name, values in pins.items()])
    job = make_job(global_batch=batch, seq_len=2048)
    cluster = load_cluster(machines)
    ranking = search(load_model(model), cluster, job, space=space, top=12, efficiency=EFFICIENCY)
    where = Context(model=load_model(model), pool=cluster.pools[0], job=job, efficiency=EFFICIENCY)
    rows = Strategies.concatenated([row_of(plan) for plan in ranking.plans])
    assert len(rows) == len(ranking.plans) > 1
    verdict = evaluate(where, rows)
    for index, plan in enumerate(ranking.plans):
        row = rows.take(slice(index, index + 1))
        alone = plan_of_row(row, plan.model, job, plan.cluster, cluster.pools[0].gpu.name)
        assert alone == replace(plan, prediction=None, label="")
        found = predict(alone, EFFICIENCY)
        assert found.iteration_seconds == plan.iteration_seconds
        assert verdict.seconds[index] == pytest.approx(found.iteration_seconds, rel=1e-9)
        assert verdict.peak_bytes[index] == pytest.approx(max(s.total_bytes for s in found.memory[0]), rel=1e-9)


def two_types(slow_layers: int, micro_batches: tuple[int, int] = (8, 8)) -> Plan:
    """Return two replicas of an A100 stage and a V100 stage each."""
    model = load_model("gpt2-xl")
    cluster = cluster_of((1, "A100-SXM-40", 8), (1, "V100-SXM2-32", 8))
    job = make_job(global_batch=8 * sum(micro_batches), seq_len=1024, precision="fp16")
    uniform = search(model, cluster_of((1, "A100-SXM-40", 8)), job, efficiency=EFFICIENCY).best
    count = len(model.layers)

    def stage(gpu: str, low: int, high: int) -> Stage:
        return replace(uniform.stages[0], gpu=gpu, layers=((low, high),), tensor_parallel=4)

    fast = count - slow_layers
    first, second = (pool.gpu.name for pool in cluster.pools)
    stages = (stage(first, 0, fast), stage(second, fast, count))
    replicas = tuple(Replica(count=1, micro_batches=number, stages=stages) for number in micro_batches)
    schedule = replace(uniform.schedule, virtual_stages=1)
    return replace(
        uniform,
        cluster=cluster,
        micro_batch=8,
        schedule=schedule,
        replicas=replicas,
        prediction=None,
        flash_attention=True,
    )


def test_one_kind_of_replica_twice_is_two_of_the_kind():
    split = two_types(12)
    joined = replace(split, replicas=(replace(split.replicas[0], count=2),))
    assert seconds(joined) == pytest.approx(seconds(split), rel=1e-12)


def test_slow_gpus_want_fewer_layers():
    assert seconds(two_types(14)) < seconds(two_types(24)) < seconds(two_types(36))


def test_the_replica_with_most_micro_batches_decides():
    even, uneven = two_types(14), two_types(14, (4, 12))
    assert seconds(uneven) > seconds(even)
    longest = max(replica.pipeline_seconds for replica in mixed_iteration(uneven, EFFICIENCY).replicas)
    assert longest == mixed_iteration(uneven, EFFICIENCY).replicas[1].pipeline_seconds
