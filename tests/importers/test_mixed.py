"""Scripts of plans over several GPU types come back as the plans that they were exported from, at the same price."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import shardwright
from shardwright import SpecError, to_megatron
from shardwright.exporters.megatron.launch import launch_script
from shardwright.importers.launch import plan_from_launch
from shardwright.plans.plan import Plan, Recompute
from tests.importers.texts import plan_from_megatron
from tests.plans.meshes import A, H, mesh

BLOCK = Recompute(granularity="full", method="block", layers=1)
SEVERAL = {
    "two types": mesh((4, "AH")),
    "three stages": mesh((2, "HHA")),
    "a stage on both": mesh((2, "HA"), (2, "AA")),
    "replicas in turn": mesh((1, "HH"), (1, "AA"), tp=8),
    "recomputed": mesh((4, "HA"), recompute=BLOCK),
    "stages together": mesh((2, "HA"), tp=8, order="tp-cp-ep-pp-dp"),
}


def _read(plan: Plan, script: str) -> Plan:
    read = plan_from_megatron(script, cluster=plan.cluster, model=plan.model)
    return replace(read.plan, job=replace(read.plan.job, tokens=plan.job.tokens))


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
@pytest.mark.parametrize("name", SEVERAL)
def test_a_script_gives_the_plan_back(name: str, launcher: str) -> None:
    plan = SEVERAL[name]
    assert _read(plan, _script(plan, launcher)) == plan


def _script(plan: Plan, launcher: str) -> str:
    return launch_script(plan, to_megatron(plan), launcher)  # type: ignore[arg-type]


def test_the_best_mesh_comes_back_at_its_price(tmp_path: Path) -> None:
    cluster = shardwright.load_cluster("1x8xH100-SXM+2x8xA100-SXM-80")
    job = shardwright.make_job(global_batch=128, seq_len=4096)
    best = shardwright.plan(shardwright.load_model("llama-2-13b"), cluster, job, exportable_to="megatron", top=1).best
    assert len(best.gpus_by_type) == 2
    (tmp_path / "run.sh").write_text(shardwright.export(best, "megatron").files["run.sh"], encoding="utf-8")
    read = plan_from_launch(tmp_path / "run.sh", cluster=cluster, model=best.model).plan
    assert read.replicas == best.replicas
    again = shardwright.predict(read).predicted
    assert again.iteration_seconds == best.iteration_seconds
    assert again.memory == best.predicted.memory


SCRIPT = _script(SEVERAL["two types"], "torchrun")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0 to 1 A100-SXM-80; 2 to 3 H100-SXM", "0 to 1 A100-SXM-80; 3 to 4 H100-SXM", "does not go on the order"),
        ("A100-SXM-80; 2", "B200; 2", "names B200, which the cluster has not"),
        (
            "0 to 1 A100-SXM-80; 2 to 3 H100-SXM",
            "0 A100-SXM-80; 1 to 3 H100-SXM; 4 A100-SXM-80",
            "data parallel degree 5",
        ),
        ("# Machines by NODE_RANK", "# Machines", f"has {A}, {H}"),
    ],
)
def test_an_order_that_runs_no_plan_is_named(old: str, new: str, message: str) -> None:
    assert old in SCRIPT
    with pytest.raises(SpecError, match=message):
        _read(SEVERAL["two types"], SCRIPT.replace(old, new))


def test_a_stage_on_two_types_is_refused() -> None:
    script = SCRIPT.replace("--tensor-model-parallel-size 4", "--tensor-model-parallel-size 16")
    order = script.replace("0 to 1 A100-SXM-80; 2 to 3 H100-SXM", "0 A100-SXM-80; 1 to 3 H100-SXM")
    with pytest.raises(SpecError, match="GPUs of two types"):
        _read(SEVERAL["two types"], order)
