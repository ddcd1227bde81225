"""The plan for machines of several types is never slower than the obvious ones, and says how near to the best it is."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests.cli.running import succeeded
from tests.measured import real_document
from tests.nightly import nightly

import shardwright
from shardwright.cost.compute.efficiency import Analytic
from shardwright.plans.check import check
from shardwright.plans.document import dumps, load_plan
from shardwright.plans.plan import Plan
from shardwright.search.planner import plan, predict
from shardwright.spec.cluster import Cluster
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


GAP = 0.01
CASES = (
    ("opt-350m", "2x8xA100-SXM-40+1x4xH20", 512, 1024),
    ("gpt2-xl", "1x8xH20+1x4xA10G", 64, 1024),
    ("opt-1.3b", "2x4xV100-SXM2+1x8xA100-SXM-40", 256, 1024),
    ("llama-2-13b", "1x8xA100-SXM-80+4x8xH100-SXM", 512, 2048),
    ("llama-3.1-8b", "1x8xRTX3090+4x8xA100-SXM-40", 128, 2048),
)


def twice(machines: str) -> str:
    """Return a cluster in short form with two machines for each."""
    counts = (part.split("x", 1) for part in machines.split("+"))
    return "+".join(f"{2 * int(count)}x{rest}" for count, rest in counts)


def spread(best: Plan, cluster: Cluster) -> Iterator[Plan]:
    """Yield a plan on a larger cluster: on part of it, and with twice the replicas, if these can halve their work."""
    yield replace(best, cluster=cluster, prediction=None)
    if all(replica.micro_batches % 2 == 0 for replica in best.replicas):
        halved = (replace(each, count=2 * each.count, micro_batches=each.micro_batches // 2) for each in best.replicas)
        yield replace(best, cluster=cluster, replicas=tuple(halved), prediction=None)


@pytest.mark.parametrize(("name", "machines", "batch", "seq_len"), [CASES[1], *nightly([CASES[0], *CASES[2:]])])
def test_twice_the_machines_are_never_worse(name: str, machines: str, batch: int, seq_len: int) -> None:
    model, cluster = load_model(name), load_cluster(twice(machines))
    job = make_job(global_batch=batch, seq_len=seq_len, precision="fp16" if "V100" in machines else "bf16")
    half = plan(model, load_cluster(machines), job, efficiency=Analytic(), gap=GAP).best
    whole = plan(model, cluster, job, efficiency=Analytic(), gap=GAP).best.predicted
    for rival in spread(half, cluster):
        found = predict(rival, efficiency=Analytic()).prediction
        if not check(rival) and found is not None and found.fit_probability >= 0.9:
            assert whole.iteration_seconds <= found.iteration_seconds * (1.0 + GAP)


def planned(folder: Path, machines: str) -> Plan:
    profile, out = folder / "layers.json", folder / "plan.json"
    profile.write_text(json.dumps(real_document({"V100-SXM2": "V100-SXM2-16"})))
    succeeded(["plan", "--profile", str(profile), "--cluster", machines, "--global-batch", "1024", "--out", str(out)])
    return load_plan(out)


def test_the_slower_half_of_measured_machines_is_at_work(tmp_path: Path) -> None:
    half, whole = (planned(tmp_path, f"{n}x4xA100-SXM-40+{n}x4xV100-SXM2-16") for n in (16, 32))
    assert whole.gpus_by_type == {"A100-SXM-40": 128, "V100-SXM2-16": 128}
    assert whole.iteration_seconds < 0.55 * half.iteration_seconds


ROUNDING = 1 + 1e-9  # times of plans are rounded when they are compared
AMPERE = "1x8xA100-SXM-80+1x8xA100-SXM-40"
WITHOUT = {
    "neither fused attention nor overlap": (AMPERE, "1x8xT4", {"precision": "fp16"}),
    "no overlap": ("1x8xH100-SXM+1x8xA100-SXM-80", "1x8xL40S", {}),
}


@pytest.mark.parametrize(("machines", "more", "words"), WITHOUT.values(), ids=WITHOUT)
def test_plans_over_several_types_are_no_slower_beside_one_more(machines, more, words):
    job = make_job(global_batch=32, seq_len=2048, **words)
    few, many = (
        shardwright.plan(
            load_model("llama-3.2-3b"), load_cluster(names), job, top=1, exportable_to="megatron"
        ).best.predicted
        for names in (machines, f"{machines}+{more}")
    )
    assert many.lower_bound_seconds is not None
    assert many.iteration_seconds <= few.iteration_seconds * ROUNDING
    assert many.lower_bound_seconds <= few.iteration_seconds * ROUNDING


@pytest.mark.nightly
def test_a_search_over_many_types_is_no_worse_than_one_over_those_that_its_plan_uses():
    used = "1x8xH100-SXM+1x8xA100-SXM-80+1x8xA100-SXM-40+1x8xH20"
    job = make_job(global_batch=128, seq_len=4096)
    few, many = (
        shardwright.plan(load_model("llama-3.1-8b"), load_cluster(names), job, top=1).best
        for names in (used, f"{used}+1x8xL40S+1x8xRTX4090+1x8xA10G")
    )
    assert many.iteration_seconds <= few.iteration_seconds * ROUNDING
