"""Exports mean the same plan to each target's own code, which also refuses broken ones. Optional: see targets.sh."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.golden.plans import PLANS as GOLDEN_PLANS
from tests.targets.expected import options
from tests.targets.plans import machine_plans, option_plans, torchtitan_plans, trainer_plans

import shardwright
from shardwright import Plan, SpecError
from shardwright.exporters.hugging_face import PRECISION
from shardwright.exporters.skypilot import gpu_names
from shardwright.exporters.torchtitan.config import modules_of_parts

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-targets"
TIME_LIMIT_SECONDS = 900
FEWEST = 12
PLANS: dict[str, Callable[[], dict[str, Plan]]] = {
    "bridge": lambda: {**GOLDEN_PLANS, **torchtitan_plans(), **option_plans()},
    "torchtitan": torchtitan_plans,
    "accelerate": trainer_plans,
    "deepspeed": lambda: {**trainer_plans(), **option_plans()},
    "skypilot": machine_plans,
}
# Of each target: a plan, a file of its export, and changes of its text, each of which the target's code must refuse.
BROKEN = {
    "bridge": (
        "llama-2-70b-interleaved",
        "shardwright_recipe.py",
        [
            ("num_layers=80", "num_layers=79"),
            ("num_attention_heads=64", "num_attention_heads=63"),
            ("tensor_model_parallel_size=8", "tensor_model_parallel_size=7"),
            ("num_query_groups=8", "num_query_group=8"),
            ("micro_batch_size=1", "micro_batch=1"),
            ("'bf16_mixed'", "'bf17_mixed'"),
            ("virtual_pipeline_model_parallel_size=", "virtual_stages="),
            ("overlap_grad_reduce=True", "overlap_gradients=True"),
        ],
    ),
    "torchtitan": (
        "uneven",
        "shardwright_plan.py",
        [
            ("'layers.6'", "'layers.60'"),
            ("'layers.31'", "'layers.30'"),
            ("'1F1B'", "'2F2B'"),
            ("pipeline_parallel_degree=4", "pipeline_parallel_degree=3"),
            ("seq_len=4096", "sequence=4096"),
            ("global_batch_size=64", "global_batch_size=65"),
            ("tensor_parallel_degree=1", "tensor_parallel_degree=3"),
            ("'8B'", "'9B'"),
            ("'partial_dtensor'", "'spmd_types'"),  # under PyTorch 2.13
        ],
    ),
    "accelerate": (
        "llama-3.1-8b zero3 tp 1 cp 2 bf16 kept",
        "accelerate.yaml",
        [
            ("dp_shard_size: 4", "dp_shard_size: 3"),
            ("fsdp_version: 2", "fsdp_version: 3"),
            ("fsdp_version: 2", "fsdp_version: 1"),
            ("num_processes: 8", "num_processes: 9"),
            ("fsdp_state_dict_type", "fsdp_state_dict_kind"),
            ("num_machines", "machines"),
            ("TRANSFORMER_BASED_WRAP", "WRAP_EVERYTHING"),
        ],
    ),
    "deepspeed": (
        "offloaded",
        "ds_config.json",
        [
            ('"train_batch_size": 64', '"train_batch_size": 63'),
            ('"stage": 3', '"stage": 4'),
            ('"gradient_accumulation_steps": 8', '"gradient_accumulation_steps": 7'),
            ('"device": "cpu"', '"device": "gpu"'),
            ('"ratio": 0.5', '"ratio": 1.5'),
            ('"zero_optimization"', '"zero_optimisation"'),
            ('"overlap_comm"', '"overlap_communication"'),
        ],
    ),
    "skypilot": (
        "A100 + V100",
        "task.yaml",
        [
            ("num_nodes: 1", "num_nodes: one"),
            ("num_nodes: 1", "nodes: 1"),
            ("execution: parallel", "execution: sideways"),
            ("use_spot: false", "use_spot: maybe"),
            ("network_tier: best", "network_tier: splendid"),
            ("accelerators:", "accelerator:"),
            ("A100: 8", "A100: 7"),
        ],
    ),
}


def interpreter(target: str) -> Path:
    """The interpreter that has a target, as targets.sh makes it or SHARDWRIGHT_TARGETS names its folder."""
    return Path(os.environ.get("SHARDWRIGHT_TARGETS", str(ENVIRONMENTS))) / target / "bin" / "python"


@functools.cache
def exported(target: str) -> dict[str, tuple[Plan, Mapping[str, str]]]:
    """The plans that a target can run, with their files."""
    found = {}
    for name, plan in PLANS[target]().items():
        try:
            found[name] = plan, shardwright.export(plan, target).files
        except SpecError:
            continue
    return found


@functools.cache
def results(target: str, folder: Path) -> dict[str, dict[str, Any]]:
    python = interpreter(target)
    if not python.exists():
        pytest.skip(f"{python} is missing: make targets")
    cases = [
        {"name": name, "files": dict(files), "world_size": plan.gpus}
        for name, (plan, files) in exported(target).items()
    ]
    sound, broken_file, breaks = BROKEN[target]
    plan, files = exported(target)[sound]
    for old, new in breaks:
        text = files[broken_file].replace(old, new, 1)
        assert text != files[broken_file], old
        cases.append({"name": f"{old} → {new}", "files": {**files, broken_file: text}, "world_size": plan.gpus})
    out = folder / "results.json"
    done = subprocess.run(
        [python, HERE / f"check_{target}.py", out],
        input=json.dumps(cases),
        env={**os.environ, "HOME": str(folder), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {result["name"]: result for result in json.loads(out.read_text(encoding="utf-8"))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("targets")


@pytest.mark.parametrize("target", PLANS)
def test_the_target_makes_the_same_plans_of_the_files(target: str, folder: Path) -> None:
    found = results(target, folder)
    assert len(exported(target)) >= FEWEST
    for name, (plan, _) in exported(target).items():
        assert found[name].get("error") is None, (name, found[name])
        assert found[name]["values"] == EXPECTED[target](plan), name


@pytest.mark.parametrize("target", PLANS)
def test_the_target_refuses_broken_files(target: str, folder: Path) -> None:
    found = results(target, folder)
    accepted = [f"{old} → {new}" for old, new in BROKEN[target][2] if not found[f"{old} → {new}"].get("error")]
    assert accepted == []


def of_torchtitan(plan: Plan) -> dict[str, Any]:
    (replica,) = plan.replicas
    stage, depth = replica.stages[0], len(replica.stages)
    parts = [sum(name.startswith("layers.") for name in part) for part in modules_of_parts(plan)] if depth > 1 else None
    policies = {"none": "NoneType", "selective": "SelectiveAC", "full": "FullAC"}
    return {
        "parameters": pytest.approx(plan.model.parameters, rel=1e-6),
        "degrees": [stage.tensor_parallel, stage.context_parallel, depth, replica.count, stage.expert_parallel],
        "parts": parts,
        "batch": [
            plan.job.global_batch,
            plan.micro_batch * (replica.micro_batches if depth > 1 else 1),
            plan.job.seq_len,
        ],
        "recompute": policies[stage.recompute.granularity],
    }


def of_accelerate(plan: Plan) -> dict[str, Any]:
    stage = plan.stages[0]
    found: dict[str, Any] = {"precision": PRECISION[plan.job.precision], "nodes": -(-plan.gpus // 8)}
    if plan.optimizer.sharding != "none":
        degrees = [1, plan.data_parallel, stage.tensor_parallel, stage.context_parallel]
        found |= {"fsdp": 2, "reshard": plan.optimizer.sharding == "zero3", "degrees": degrees}
    return found


def of_deepspeed(plan: Plan) -> dict[str, Any]:
    (replica,) = plan.replicas
    return {
        "batch": [plan.job.global_batch, plan.micro_batch, replica.micro_batches],
        "stage": ("none", "zero1", "zero2", "zero3").index(plan.optimizer.sharding),
        "offload": plan.optimizer.offload,
        "bf16": plan.job.precision == "bf16",
        "tensor": replica.stages[0].tensor_parallel,
        "reduction": plan.job.options.grad_reduce,
    }


def of_skypilot(plan: Plan) -> dict[str, Any]:
    pools = [pool for pool in plan.cluster.pools if plan.gpus_by_type[pool.gpu.name]]
    return {
        "tasks": [
            [
                plan.gpus_by_type[pool.gpu.name] // pool.gpus_per_node,
                {gpu_names()[pool.gpu.name]: pool.gpus_per_node},
                pool.spot,
            ]
            for pool in pools
        ]
    }


def of_bridge(plan: Plan) -> dict[str, Any]:
    (replica,) = plan.replicas
    stage, depth = replica.stages[0], len(replica.stages)
    return {
        "degrees": [stage.tensor_parallel, stage.context_parallel, depth, replica.count, stage.expert_parallel],
        "virtual": plan.schedule.virtual_stages,
        "layers": len(plan.model.layers),
        "stages": depth if depth > 1 else None,
        "batch": [plan.micro_batch, plan.job.global_batch, plan.job.seq_len],
        "recompute": stage.recompute.granularity,
        "sequence": plan.sequence_parallel,
        "distributed": plan.optimizer.distributed,
        "fsdp": plan.optimizer.sharding in ("zero2", "zero3"),
        "fp8": plan.job.precision == "fp8",
        "options": options(plan),
    }


EXPECTED = {
    "bridge": of_bridge,
    "torchtitan": of_torchtitan,
    "accelerate": of_accelerate,
    "deepspeed": of_deepspeed,
    "skypilot": of_skypilot,
}
