"""The nearest plan that a target can run: it runs it, and nothing that only another model would mend is searched for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.running import run, succeeded
from tests.plans.meshes import mesh

import shardwright
from shardwright.exporters.targets import TARGETS, TRAINERS
from shardwright.plans.plan import Plan

SMALL = shardwright.load_cluster("1x8xH100-SXM+1x8xA100-SXM-80")


@pytest.fixture(scope="module")
def unequal() -> Plan:
    """Replicas of unequal batches over two types: no target but `shardwright train` runs them."""
    whole, model = mesh((4, "AH"), tp=1), shardwright.load_model("llama-3.1-8b")
    layers = (((0, 12),), ((12, 32),))
    stages = tuple(replace(stage, layers=own) for stage, own in zip(whole.replicas[0].stages, layers, strict=True))
    one = replace(whole.replicas[0], count=6, micro_batches=2, stages=stages)
    plan = replace(
        whole,
        model=model,
        job=shardwright.make_job(global_batch=16, seq_len=4096),
        cluster=SMALL,
        replicas=(one, replace(one, count=1, micro_batches=4)),
        sequence_parallel=False,
    )
    return shardwright.predict(plan)


@pytest.mark.parametrize("to", TRAINERS)
def test_the_nearest_plan_is_one_that_the_target_runs(to: str, unequal: Plan) -> None:
    with pytest.raises(shardwright.SpecError):
        shardwright.export(unequal, to)
    found = shardwright.nearest_plan(unequal, to)
    assert found is not None and found.prediction is not None
    assert (found.model, found.cluster) == (unequal.model, unequal.cluster)
    assert found.job.framework == TARGETS[to].framework
    assert shardwright.export(found, to).files


def test_what_only_another_model_would_mend_has_no_nearest_plan(unequal: Plan) -> None:
    other = replace(unequal, model=replace(unequal.model, position="alibi"))
    assert shardwright.nearest_plan(other, "megatron") is None
    assert shardwright.nearest_plan(unequal, "perfetto") is None


def test_a_refusal_names_the_nearest_plan_and_writes_it_when_asked(unequal: Plan, tmp_path: Path) -> None:
    path, folder = tmp_path / "plan.json", tmp_path / "ds"
    shardwright.save(unequal, path)
    arguments = ["export", str(path), "--to", "deepspeed"]
    refused = run(arguments)
    assert refused.code == 2
    assert "the nearest plan that it can run takes" in refused.err and "--nearest" in refused.err
    written = succeeded([*arguments, "--nearest", "-o", str(folder)])
    assert {file.name for file in folder.iterdir()} >= {"ds_config.json", "run.sh"}
    assert "cannot run" in written.err
