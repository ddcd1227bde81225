"""On GPUs of one type `train` also runs unequal replicas: enumeration never finds one that beats the certificate, and
equal GPUs are not left idle because the batch does not divide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.nightly import nightly
from tests.search.mixed.oracle import brute_force
from tests.search.mixed.problems import EFFICIENCY, MODELS

from shardwright.cost.context import Context
from shardwright.cost.memory.facts import headroom
from shardwright.plans.ranking import Ranking
from shardwright.search.mixed.tables.settings import settings
from shardwright.search.planner import plan
from shardwright.search.space.axes import Space
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.read.cluster import build_cluster, load_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model

MOST = 200_000  # sets of pipelines that an enumeration looks at before it gives up, and the test fails
GAP = 0.01


def small(seed: int) -> tuple[Model, Cluster, Job]:
    """Return a random problem on 3 to 7 GPUs of one type."""
    pick = np.random.default_rng(seed)
    whole = load_model(MODELS[pick.integers(len(MODELS))])
    model = replace(whole, layers=whole.layers[: int(pick.integers(3, 7))])
    node = {"count": int(pick.integers(3, 8)), "gpu": "A100-SXM-40", "gpus": 1, "inter_node_gbps": 100}
    batch = int(pick.integers(4, 10))
    job = make_job(global_batch=batch, seq_len=512, framework="train")
    return model, build_cluster({"nodes": [{**node, "memory_gb": int(pick.choice((4, 8, 16)))}]}, "test"), job


def ranked(model: Model, cluster: Cluster, job: Job, **given: object) -> Ranking:
    return plan(model, cluster, job, efficiency=EFFICIENCY, gap=GAP, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [*range(4), *nightly(range(4, 12))])
def test_enumeration_does_not_beat_the_certificate(seed: int) -> None:
    model, cluster, job = small(seed)
    space = Space(pins={"tp": (1,), "micro_batch": (1,)})
    context = Context(model=model, pool=cluster.pools[0], job=job, efficiency=EFFICIENCY, headroom=headroom(0.9, job))
    best = brute_force([context], cluster, settings([context], space), MOST).best
    found = ranked(model, cluster, job, space=space)
    assert bool(found.plans) >= np.isfinite(best)
    if found.plans:
        assert found.best.predicted.lower_bound_seconds is not None
        assert found.best.predicted.lower_bound_seconds <= best * (1 + 1e-9)
        assert found.best.iteration_seconds <= best * (1.0 + max(GAP, found.search.gap or 0.0)) * (1 + 1e-9)


def test_replicas_share_a_batch_that_does_not_divide() -> None:
    model, cluster = load_model("llama-3.1-8b"), load_cluster("10x8xH100-SXM")
    job = make_job(global_batch=512, seq_len=8192, framework="train")
    found = ranked(model, cluster, job).best
    equal = ranked(model, cluster, job, exportable_to="megatron").best
    assert equal.uniform
    assert not found.uniform
    assert found.gpus == 80
    assert found.iteration_seconds < 0.95 * equal.iteration_seconds
    shares = {replica.micro_batches for replica in found.replicas}
    assert max(shares) - min(shares) == 1


def test_other_frameworks_are_given_equal_replicas() -> None:
    model, cluster = load_model("llama-3.1-8b"), load_cluster("10x8xH100-SXM")
    found = ranked(model, cluster, make_job(global_batch=512, seq_len=8192), top=3)
    assert all(each.uniform for each in found.plans)
    assert found.search.gap == 0.0
