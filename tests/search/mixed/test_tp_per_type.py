"""GPU types of unequal tensor-parallel degree in one plan: the certificate covers them, and they can be the fastest."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.running import answered
from tests.nightly import nightly
from tests.search.mixed.problems import EFFICIENCY, Small, solved, stated
from tests.search.mixed.test_existing_plans import Existing, close_no_region, existing, rule_out_no_composition
from tests.search.mixed.test_optimum import against_enumeration

from shardwright.cost.context import Context
from shardwright.plans.check import check
from shardwright.plans.document import load_plan
from shardwright.plans.plan import Plan
from shardwright.search.mixed.branch_and_bound.fastest import search_degrees
from shardwright.search.mixed.branch_and_bound.run import MixedResult
from shardwright.search.mixed.tables.model_tables import tables
from shardwright.search.mixed.tables.settings import settings
from shardwright.search.planner import predict
from shardwright.search.replan import replan
from shardwright.search.space.axes import Space
from shardwright.spec.cluster import Cluster
from shardwright.spec.read.cluster import build_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model

GPUS = ("A100-SXM-40", "V100-SXM2", "A10G", "RTX3090", "L4", "T4")
MODELS = ("gpt2-medium", "gpt2-large", "pythia-410m", "pythia-1b", "opt-1.3b")
CLUSTER = """nodes:
  - {count: 2, gpu: V100-SXM2-16, gpus: 4}
  - {count: 1, gpu: H100-SXM, gpus: 1}
"""
SOME = (0, 1, 2, 3, 4, 6, 7, 129)  # of the last the best plan is a pipeline over all units
FEW = (0, 2, 129)
MANY = tuple(seed for seed in range(250) if seed not in SOME)
SLOWEST = 1.1


def problem_of(seed: int) -> Small:
    """Return a random problem with the settings of unequal degrees alone: machines of several GPUs with little memory
    each, so that many plans need several types."""
    pick = random.Random(seed)
    nodes = [
        {
            "count": pick.choice((1, 2)) if each < 4 else 1,
            "gpu": gpu,
            "gpus": each,
            "memory_gb": pick.choice((3, 4, 5, 8)),
            "inter_node_gbps": pick.choice((25, 100, 200, 400)),
        }
        for gpu, each in zip(pick.sample(GPUS, pick.choice((2, 2, 3))), pick.sample((1, 2, 2, 4), 3), strict=False)
    ]
    cluster = build_cluster({"nodes": nodes}, "test")
    whole = load_model(pick.choice(MODELS))
    model = replace(whole, layers=whole.layers[: pick.randint(4, 7)])
    job = make_job(global_batch=pick.choice((4, 6, 8)), seq_len=1024, precision="fp16")
    contexts = tuple(Context(model=model, pool=pool, job=job, efficiency=EFFICIENCY) for pool in cluster.pools)
    space = Space(pins={"micro_batch": (pick.choice((1, 1, 2)),), "tp": (1, 2, 4)}, tp_per_type=True)
    chosen = tuple(setting for setting in settings(contexts, space) if not setting.symmetric)
    return Small(cluster, contexts, space, chosen, tuple(tables(contexts, chosen)))


def with_all_settings(problem: Small) -> Small:
    chosen = tuple(settings(problem.contexts, problem.space))
    return replace(problem, settings=chosen, tables=tuple(tables(problem.contexts, chosen)))


def seconds_of(found: MixedResult) -> float:
    return min((seconds for seconds, _ in found.plans), default=np.inf)


def mixes_degrees(plan: Plan) -> bool:
    return len({stage.tensor_parallel for stage in plan.stages}) > 1


@pytest.mark.parametrize("seed", [1, 2, *nightly(seed for seed in SOME if seed not in (1, 2))])
def test_enumeration_does_not_beat_the_certificate(seed):
    against_enumeration(problem_of(seed), SLOWEST)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", MANY)
def test_enumeration_of_more_clusters_does_not_beat_the_certificate(seed):
    against_enumeration(problem_of(seed), SLOWEST)


@pytest.mark.parametrize("seed", [*FEW, *nightly(seed for seed in (*range(32), *SOME) if seed not in FEW)])
def test_no_plan_that_exists_is_ruled_out(seed):
    plans = existing_plans(seed)
    rule_out_no_composition(plans)
    close_no_region(plans)


@cache
def existing_plans(seed: int) -> list[Existing]:
    problem, found = problem_of(seed), list[Existing]()
    for place in range(len(problem.settings)):
        part = replace(problem, settings=problem.settings[place : place + 1], tables=problem.tables[place : place + 1])
        found += existing(part, 100 * seed + place, 3)
    return found


def test_there_are_plans_to_look_at():
    assert sum(len(existing_plans(seed)) for seed in FEW) > 10


@pytest.mark.parametrize("seed", [*range(2), *nightly(range(2, 16))])
def test_unequal_degrees_never_lead_to_a_slower_plan(seed):
    problem = with_all_settings(problem_of(seed))
    equal = [place for place, setting in enumerate(problem.settings) if setting.symmetric]
    alone = replace(
        problem,
        settings=tuple(problem.settings[place] for place in equal),
        tables=tuple(problem.tables[place] for place in equal),
    )
    best, found = seconds_of(solved(alone, 0.01)), each_degree(problem)
    assert seconds_of(found) <= best
    assert found.bound <= seconds_of(found)


def each_degree(problem: Small) -> MixedResult:
    return search_degrees(stated(problem, 0.01), 1e9, lambda plan: True)


@pytest.mark.parametrize("seed", [8, 28, *nightly([36, 55])])
def test_a_plan_of_unequal_degrees_can_be_the_fastest(seed):
    """Pairs of GPUs of one type hold as many layers as single larger ones of another: no single degree serves both."""
    problem = with_all_settings(problem_of(seed))
    seconds, plan = each_degree(problem).plans[0]
    assert mixes_degrees(plan)
    equal = replace(problem, space=replace(problem.space, tp_per_type=False))
    assert seconds < 0.95 * seconds_of(each_degree(with_all_settings(equal)))


def test_settings_are_those_of_every_type():
    problem = problem_of(1)
    chosen = settings(problem.contexts, problem.space)
    assert len(set(chosen)) == len(chosen)
    plain = settings(problem.contexts, replace(problem.space, tp_per_type=False))
    assert [setting for setting in chosen if setting.symmetric] == plain
    pinned = settings(problem.contexts, replace(problem.space, pins={"tp": (2,)}))
    assert {setting.tp for setting in pinned} == {(2,) * len(problem.contexts)}
    assert {degree for setting in chosen for degree in setting.tp} <= {1, 2, 4}


def test_tables_of_a_setting_have_the_columns_of_each_type():
    """A type's figures depend on its own degree alone, whatever the others have."""
    problem = with_all_settings(problem_of(0))
    alike = dict(zip(problem.settings, problem.tables, strict=True))
    for setting, table in alike.items():
        for place in range(len(setting.tp)):
            for other, its in alike.items():
                if other.on(place) == setting.on(place):
                    assert np.array_equal(table.forward[place], its.forward[place])
                    assert table.units[place] == its.units[place]
                    assert table.room_bytes[place] == its.room_bytes[place]


def test_the_command_line_searches_degrees_per_type(tmp_path):
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    plain, both = planned(tmp_path), planned(tmp_path, "--tp-per-type")
    seconds = [found["plans"][0]["prediction"]["iteration_seconds"] for found in (plain, both)]
    assert seconds[1] < 0.95 * seconds[0]
    assert any("--tp-per-type" in kind["words"] for kind in plain["search"]["not_covered"])
    assert not any("--tp-per-type" in kind["words"] for kind in both["search"]["not_covered"])
    plan = load_plan(tmp_path / "plan.json")
    assert mixes_degrees(plan) and check(plan) == ()
    kept = replan(plan, fewer_machines(plan))
    assert kept is not None and check(kept) == () and degrees(kept) == degrees(plan)
    best = answered(["evaluate", str(tmp_path / "plan.json"), "--json"])["best"]
    assert best["prediction"]["iteration_seconds"] <= seconds[1]
    assert len({stage["tensor_parallel"] for replica in best["replicas"] for stage in replica["stages"]}) == 2
    again = predict(plan).prediction
    assert again is not None and again.iteration_seconds == pytest.approx(seconds[1], rel=1e-12)


def degrees(plan: Plan) -> set[tuple[str, int]]:
    return {(stage.gpu, stage.tensor_parallel) for stage in plan.stages}


def fewer_machines(plan: Plan) -> Cluster:
    """Return the cluster without one of its machines with several GPUs."""
    pools = tuple(replace(pool, nodes=pool.nodes - (pool.gpus_per_node > 1)) for pool in plan.cluster.pools)
    return replace(plan.cluster, pools=pools)


def planned(folder: Path, *options: str) -> dict[str, Any]:
    job = [
        "--model",
        "llama-3.2-3b",
        "--global-batch",
        "16",
        "--seq-len",
        "2048",
        "--precision",
        "fp16",
        "--framework",
        "train",
        "--gap",
        "0.3",
    ]
    files = ["--cluster", str(folder / "cluster.yaml"), "--out", str(folder / "plan.json"), "--json"]
    return dict(answered(["plan", *job, *files, *options]))
