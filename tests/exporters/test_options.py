"""Options of the trainer in exports: written, or refused by name with what helps."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.golden.plans import LLAMA_3_1_8B, MIXTRAL_8X7B, uniform_plan
from tests.importers.texts import plan_from_megatron
from tests.targets.plans import option_plans

import shardwright
from shardwright import Job, SpecError, nearest_plan
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.learned import default_efficiency
from shardwright.exporters.megatron.export import dispatcher_of_plan, to_megatron
from shardwright.exporters.megatron.launch import launch_script
from shardwright.plans.plan import Plan, Recompute
from shardwright.runtime.layout.limits import unrunnable
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.options import Dispatcher, Options, said

JOB = Job(global_batch=64, seq_len=4096)


def _plan(sharding: Any = "zero2", **options: Any) -> Plan:
    job = replace(JOB, options=Options(**options))
    return uniform_plan(LLAMA_3_1_8B, nodes=1, job=job, micro_batch=1, tp=1, counts=(32,), sharding=sharding)


@pytest.mark.parametrize("target", ["torchtitan", "accelerate", "deepspeed"])
def test_what_a_target_cannot_be_told_is_refused_by_name(target: str) -> None:
    for name in ("loss", "grad_reduce"):
        plan = _plan(**{name: {"loss": "fused", "grad_reduce": "bf16"}[name]})
        if (target, name) == ("deepspeed", "grad_reduce"):
            continue
        with pytest.raises(SpecError, match=f"job.options.{name}: .*cannot be told") as error:
            shardwright.export(plan, target)
        assert f"--set {name}=default" in str(error.value)


def test_deepspeed_is_told_how_gradients_are_reduced() -> None:
    config = json.loads(shardwright.export(_plan(grad_reduce="bf16"), "deepspeed").files["ds_config.json"])
    assert (config["communication_data_type"], config["data_types"]) == ("bf16", {"grad_accum_dtype": "bf16"})
    assert "data_types" not in json.loads(shardwright.export(_plan(), "deepspeed").files["ds_config.json"])


def test_modules_count_where_something_is_recomputed_selectively() -> None:
    told = {"recompute_modules": ("mlp",)}
    shardwright.export(_plan(**told), "torchtitan")
    plan = _plan(**told)
    (replica,) = plan.replicas
    stage = replace(replica.stages[0], recompute=Recompute(granularity="selective"))
    plan = replace(plan, replicas=(replace(replica, stages=(stage,)),))
    with pytest.raises(SpecError, match=r"job.options.recompute_modules: is mlp"):
        shardwright.export(plan, "torchtitan")


def test_the_nearest_plan_leaves_them_out() -> None:
    nearest = nearest_plan(_plan(grad_reduce="bf16"), "torchtitan")
    assert nearest is not None and not said(nearest.job.options)


def test_fsdp_has_types_of_its_own_in_megatron() -> None:
    with pytest.raises(SpecError, match="FSDP has types of its own"):
        shardwright.export(_plan(grad_reduce="bf16"), "megatron")


@pytest.mark.parametrize(
    ("gpu", "expert_parallel", "dispatcher"),
    [
        ("H100-SXM", 8, "alltoall"),
        ("H100-SXM", 16, "flex"),
        ("MI300X", 16, "alltoall"),
        ("V100-SXM2", 16, "alltoall"),
        ("RTX5090", 16, "alltoall"),
    ],
)
def test_experts_are_priced_and_exported_with_the_dispatcher_that_runs(
    gpu: str, expert_parallel: int, dispatcher: Dispatcher
) -> None:
    plan = _experts(expert_parallel, gpu)
    script = launch_script(plan, to_megatron(plan), "torchrun")
    assert f"--moe-token-dispatcher-type {dispatcher}" in script and dispatcher_of_plan(plan) == dispatcher
    seconds = _seconds(plan)
    assert seconds == _seconds(_told(plan, dispatcher))
    assert seconds == _seconds(plan_from_megatron(script, cluster=plan.cluster).plan)
    assert dispatcher_of_plan(_told(plan, "flex")) == "flex"


def test_one_dispatcher_serves_all_gpus_of_a_plan() -> None:
    """The A100s of a plan that V100s are part of send tokens as these do."""
    plan = _experts(16, "A100-SXM-80")
    (replica,) = plan.replicas
    (stage,) = replica.stages
    halves = (replace(stage, layers=((0, 16),)), replace(stage, gpu="V100-SXM2", layers=((16, 32),)))
    cluster = shardwright.load_cluster("4x8xA100-SXM-80+4x8xV100-SXM2")
    mixed = replace(plan, cluster=cluster, replicas=(replace(replica, stages=halves),))
    assert _seconds(mixed) == _seconds(_told(mixed, "alltoall")) != _seconds(_told(mixed, "flex"))


def test_frameworks_without_deepep_are_priced_without_it() -> None:
    for framework in ("torchtitan", "train"):
        plan = _experts(16, "H100-SXM", framework=framework)
        assert _seconds(plan) == _seconds(_told(plan, "alltoall")) > _seconds(_told(plan, "flex"))


def _experts(expert_parallel: int, gpu: str, framework: str = "megatron") -> Plan:
    layers = (replace(layer, moe=replace(layer.moe, experts=16)) for layer in MIXTRAL_8X7B.layers if layer.moe)
    model, job = replace(MIXTRAL_8X7B, layers=tuple(layers)), replace(JOB, precision="fp16", framework=framework)
    shape: dict[str, Any] = {"micro_batch": 1, "tp": 1, "ep": expert_parallel, "counts": (32,)}
    plan = uniform_plan(model, nodes=4, job=job, gpu=gpus()[gpu], **shape)
    return replace(plan, flash_attention=False)


def _told(plan: Plan, dispatcher: Dispatcher) -> Plan:
    return replace(plan, job=replace(plan.job, options=Options(dispatcher=dispatcher)))


def _seconds(plan: Plan) -> float:
    return mixed_iteration(plan, default_efficiency()).seconds


def test_train_refuses_what_it_does_otherwise() -> None:
    for plan in option_plans().values():
        wrong = {fault.path for fault in unrunnable(plan) if fault.path.startswith("job.options")}
        own = {"grad_reduce": "fp32", "dispatcher": "alltoall"}
        assert wrong == {
            f"job.options.{name}" for name, word in said(plan.job.options).items() if own.get(name) != word
        }
