"""GPUs of several types stand side by side in a stage, each with a share of the batch as it is fast."""

from __future__ import annotations

from collections import defaultdict

import pytest

import shardwright
from shardwright.plans.plan import Plan
from shardwright.search.ranked import PIPELINES


def shares(plan: Plan) -> dict[tuple[tuple[int, int], ...], dict[str, set[int]]]:
    """Return the samples that a GPU of each type takes of an iteration, by the layers of its stage."""
    found: dict[tuple[tuple[int, int], ...], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for replica in plan.replicas:
        for stage in replica.stages:
            found[stage.layers][stage.gpu].add(replica.micro_batches * plan.micro_batch)
    return found


@pytest.mark.parametrize(
    ("model", "cluster", "batch"),
    [
        ("opt-1.3b", "4x8xA100-SXM-40+4x8xV100-SXM2-32", 1024),
        ("opt-1.3b", "2x8xH100-SXM+2x8xA100-SXM-40", 512),
    ],
)
def test_types_share_a_stage_by_their_speed(model, cluster, batch):
    ranking = shardwright.plan(
        shardwright.load_model(model),
        shardwright.load_cluster(cluster),
        shardwright.make_job(global_batch=batch, seq_len=1024, precision="fp16", framework="train"),
    )
    best = next(kind.plan for kind in ranking.kinds if kind.rule == PIPELINES)
    assert best is not None
    both = [each for each in shares(best).values() if len(each) == 2]
    assert both, "some stage has both types"
    fast, slow = (pool.gpu.name for pool in best.cluster.pools)
    for each in both:
        assert min(each[fast]) > max(each[slow])
    assert sum(replica.count * replica.micro_batches for replica in best.replicas) * best.micro_batch == batch
