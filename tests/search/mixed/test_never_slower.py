"""The plan for machines of several types is never slower than the obvious ones, and says how near to the best it is."""

from __future__ import annotations

import random
from functools import cache

import pytest
from tests.nightly import nightly

from shardwright.cost.compute.efficiency import Analytic
from shardwright.plans.check import check
from shardwright.plans.document import dumps
from shardwright.search.planner import plan
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model

GPUS = ("A100-SXM-40", "A100-SXM-80", "H100-SXM", "H20", "A10G", "L4")


@cache
def solved(seed: int):
    pick = random.Random(seed)
    types = pick.sample(GPUS, pick.choice((2, 3)))
    cluster = load_cluster("+".join(f"{pick.choice((1, 2))}x{pick.choice((4, 8))}x{gpu}" for gpu in types))
    model = load_model(pick.choice(("gpt2-xl", "llama-2-7b", "opt-1.3b")))
    job = make_job(global_batch=pick.choice((32, 64, 128)), seq_len=2048 if model.family != "gpt2" else 1024)
    return plan(model, cluster, job, efficiency=Analytic(), gap=0.05)


@pytest.mark.parametrize("seed", [1, 2, *nightly([3, 4, 6, 7])])
def test_no_plain_plan_is_faster(seed):
    result = solved(seed)
    rivals = [entry.plan.prediction for entry in result.baselines if entry.plan is not None]
    assert rivals
    best = result.best.prediction
    assert best is not None
    assert check(result.best) == ()
    assert all(best.iteration_seconds <= rival.iteration_seconds * (1 + 1e-9) for rival in rivals if rival is not None)
    assert best.lower_bound_seconds <= best.iteration_seconds
    assert result.search.not_covered


def test_equal_input_gives_equal_plans():
    assert [dumps(found) for found in solved(1).plans] == [dumps(found) for found in solved.__wrapped__(1).plans]
