"""Megatron-LM exports of plans over several GPU types: the order of machines, and the look at their GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.importers.texts import plan_from_megatron
from tests.plans.meshes import A, H, mesh

import shardwright
from shardwright import SpecError, to_megatron
from shardwright.exporters.megatron.launch import OWN_SETTINGS, launch_script
from shardwright.exporters.megatron.limits import unsupported
from shardwright.exporters.runner import runner_of
from shardwright.plans.plan import Overlap, Plan, Recompute
from shardwright.spec.catalog.gpus import find_gpu

PLAN = mesh((4, "AH"))
TORCH = """from types import SimpleNamespace as Has
gpu = Has(name={name!r}, total_memory={gib} * 2**30)
cuda = Has(device_count=lambda: 8, get_device_properties=lambda number: gpu)
"""


def test_unequal_stages_become_a_layout_on_ordered_machines() -> None:
    export = to_megatron(PLAN)
    words = export.arguments
    assert words[words.index("--pipeline-model-parallel-layout") + 1] == "Et*2|tL"
    assert [host.gpu for host in export.hosts] == [A, A, H, H]
    assert launch_script(PLAN, export).splitlines()[1].startswith("# llama-2-7b on 16 H100-SXM + 16 A100-SXM-80.")


@pytest.mark.parametrize(
    ("rank", "gpu", "gib", "starts"),
    [
        (0, "NVIDIA A100-SXM4-80GB", 79.2, True),
        (1, "NVIDIA A100-SXM4-40GB", 39.4, False),
        (1, "NVIDIA H100 80GB HBM3", 79.1, False),
        (2, "NVIDIA H100 80GB HBM3", 79.1, True),
        (3, "NVIDIA A100-SXM4-80GB", 79.2, False),
    ],
)
def test_a_machine_in_the_wrong_place_is_not_started(
    rank: int, gpu: str, gib: float, starts: bool, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text(TORCH.format(name=gpu, gib=gib), encoding="utf-8")
    (tmp_path / "torchrun").write_text('#!/bin/bash\necho "started $*"\n', encoding="utf-8")
    (tmp_path / "torchrun").chmod(0o755)
    (tmp_path / "python3").symlink_to(sys.executable)
    script = tmp_path / "run.sh"
    script.write_text(launch_script(PLAN, to_megatron(PLAN)), encoding="utf-8")
    settings = dict.fromkeys((name for name, _ in OWN_SETTINGS), "own") | {"TRAIN_ITERS": "10"}
    place = {"NODE_RANK": str(rank), "MASTER_ADDR": "host", "PYTHONPATH": str(tmp_path)}
    environment = settings | place | {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True)
    assert (done.returncode == 0) is starts, done.stderr
    assert done.stdout.startswith("started --nnodes 4 --nproc-per-node 8") is starts
    assert starts or gpu in done.stderr


@pytest.mark.parametrize(
    ("plan", "path"),
    [
        (mesh((2, "HA"), order="tp-cp-ep-pp-dp"), "replicas"),  # half a machine each
        (mesh((4, "AH"), recompute=Recompute(granularity="full", method="block", layers=1)), ""),
        (replace(PLAN, overlap=Overlap(tensor_parallel=True)), ""),
    ],
)
def test_what_is_no_mesh_is_refused_by_name(plan: Plan, path: str) -> None:
    assert [problem.path for problem in unsupported(plan)] == ([path] if path else [])


def test_a_plan_of_one_type_of_several_is_read_back_on_it() -> None:
    (replica,) = mesh((4, "AA")).replicas
    plan = replace(PLAN, replicas=(replica,))
    text = launch_script(plan, to_megatron(plan))
    assert f"# Machines by NODE_RANK: 0 to 3 {A}." in text and "expect" not in text
    read = plan_from_megatron(text, cluster=plan.cluster, model=plan.model).plan
    assert read.gpus_by_type == {A: 32} and read.replicas == plan.replicas


def test_gpus_of_two_makers_have_no_library_in_common() -> None:
    cluster = shardwright.load_cluster("4x8xH100-SXM+4x8xMI300X")
    stages = tuple(
        replace(stage, gpu=find_gpu("MI300X").name if stage.gpu == A else stage.gpu)
        for stage in PLAN.replicas[0].stages
    )
    plan = replace(PLAN, cluster=cluster, replicas=(replace(PLAN.replicas[0], stages=stages),))
    with pytest.raises(SpecError, match="amd and nvidia"):
        shardwright.export(plan, "megatron")


def test_slurm_and_recipes_name_no_machines() -> None:
    with pytest.raises(SpecError, match="order"):
        shardwright.export(PLAN, "megatron", launcher="slurm")
    with pytest.raises(SpecError, match="names no machines"):
        shardwright.export(PLAN, "bridge")


def test_targets_that_bring_machines_together_keep_their_order() -> None:
    runner = runner_of(PLAN)
    assert runner.name == "megatron"
    assert [(group.types, group.first, group.count) for group in runner.machines] == [((A,), 0, 2), ((H,), 2, 2)]
    back_and_forth = mesh((2, "HHAA"), order="tp-cp-ep-pp-dp")
    assert runner_of(back_and_forth).name == "shardwright"
    tasks = json.loads(json.dumps(shardwright.export(PLAN, "skypilot").document))["documents"]
    assert [task["resources"]["accelerators"] for task in tasks[1:]] == [{"A100-80GB": 8}, {"H100": 8}]
