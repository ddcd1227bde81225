"""Options of the trainer in exports: written, or refused by name with what helps."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.golden.plans import LLAMA_3_1_8B, MIXTRAL_8X7B, cluster_of, uniform_plan
from tests.targets.plans import option_plans

import shardwright
from shardwright.errors import SpecError
from shardwright.exporters.megatron.dispatcher import dispatcher_of
from shardwright.exporters.nearest import nearest_plan
from shardwright.plans.plan import Plan, Recompute
from shardwright.runtime.layout.limits import unrunnable
from shardwright.spec.catalog.catalog import gpus
from shardwright.spec.job import Job
from shardwright.spec.options import Options, said

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
    ],
)
def test_a_plan_is_sent_as_it_is_priced_where_that_runs(gpu: str, expert_parallel: int, dispatcher: str) -> None:
    model = replace(
        MIXTRAL_8X7B,
        layers=tuple(replace(layer, moe=replace(layer.moe, experts=16)) for layer in MIXTRAL_8X7B.layers if layer.moe),
    )
    found = gpus()[gpu]
    plan = uniform_plan(model, nodes=4, job=JOB, micro_batch=1, tp=1, ep=expert_parallel, counts=(32,), gpu=found)
    assert plan.cluster == cluster_of(4, found) and dispatcher_of(plan) == dispatcher
    told = replace(plan, job=replace(plan.job, options=Options(dispatcher="flex")))
    assert dispatcher_of(told) == "flex"


def test_train_refuses_what_it_does_otherwise() -> None:
    for plan in option_plans().values():
        wrong = {fault.path for fault in unrunnable(plan) if fault.path.startswith("job.options")}
        own = {"grad_reduce": "fp32", "dispatcher": "alltoall"}
        assert wrong == {
            f"job.options.{name}" for name, word in said(plan.job.options).items() if own.get(name) != word
        }
