"""Optimizer state in host memory, in plans over several GPU types."""

from __future__ import annotations

import numpy as np
import pytest
from tests.nightly import nightly
from tests.search.mixed.problems import small, solved

from shardwright import load_cluster, load_model, make_job, plan
from shardwright.plans.findings import Offload
from shardwright.search.mixed.offload import that_may_gain

PARTS = (0.25, 0.5, 0.75, 1.0)


def seconds(ranking):
    plans = [*ranking.plans, *([ranking.passed_over.plan] if ranking.passed_over else [])]
    return min(found.prediction.iteration_seconds for found in plans)


def test_machines_with_more_memory_are_no_slower_than_those_that_they_replace():
    job = make_job(global_batch=16, seq_len=4096)
    few, many = (
        plan(load_model("llama-2-13b"), load_cluster(names), job, top=1)
        for names in ("1x4xA100-SXM-40", "1x2xA100-SXM-40+1x2xA100-SXM-80")
    )
    assert seconds(many) <= seconds(few)
    assert many.best.optimizer.offload > 0
    assert len(many.best.gpus_by_type) == 2
    assert not any(isinstance(kind, Offload) for kind in many.search.not_covered)


def test_cards_of_two_types_hold_what_those_of_one_type_hold():
    job = make_job(global_batch=16, seq_len=2048)
    found = plan(load_model("llama-2-7b"), load_cluster("1x2xRTX4090+1x1xRTX3090"), job, top=1, gap=0.2)
    assert found.best.gpus_by_type == {"RTX4090": 2, "RTX3090": 1}
    prediction = found.best.predicted
    assert prediction.fit_probability >= 0.9


@pytest.mark.parametrize("seed", [*range(2), *nightly(range(2, 4))])
def test_no_plan_of_any_part_is_below_the_bound_of_all(seed):
    problem = small(seed, pins={"offload": PARTS, "sharding": (1,)})
    kept, bound = that_may_gain(
        problem.contexts, problem.settings, problem.space, problem.cluster.site_links, longest=1e9, cutoff=1e9
    )
    plans = solved(problem, 0.0).plans
    assert bound <= min((found for found, _ in plans), default=np.inf)
    if plans:
        best = plans[0][0]
        kept, _ = that_may_gain(
            problem.contexts,
            problem.settings,
            problem.space,
            problem.cluster.site_links,
            longest=1e9,
            cutoff=1.01 * best,
        )
        assert any(setting.sharing.offload == plans[0][1].optimizer.offload for setting in kept)
