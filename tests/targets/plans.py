"""Plans for every target: models of its registry, and strategies that it can run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from tests.golden.plans import LLAMA_2_70B, LLAMA_3_1_8B, MIXTRAL_8X7B, PLANS, uniform_plan

import shardwright
from shardwright.plans.plan import Overlap, Plan, Recompute
from shardwright.spec.job import Job
from shardwright.spec.options import Options

FULL = Recompute(granularity="full", method="uniform", layers=1)
SELECTIVE = Recompute(granularity="selective")


@cache
def option_plans() -> dict[str, Plan]:
    """Every option of the trainer, with latent attention, experts and a dense model."""
    deepseek, mixtral = shardwright.load_model("deepseek-v3"), MIXTRAL_8X7B
    narrow = Options(main_grads="bf16", main_params="fp32", exp_avg="bf16", exp_avg_sq="fp8")
    latent = Options(recompute_modules=("moe_act", "layernorm", "mla_up_proj", "mlp"), dispatcher="flex", loss="fused")
    whole = Options(recompute_modules=("core_attn", "moe"), dispatcher="allgather", main_params="fp16", loss="unfused")
    shared = {"nodes": 16, "micro_batch": 1, "counts": (7, 8, 8, 8, 8, 8, 7, 7), "pp": 8, "recompute": SELECTIVE}
    return {
        "narrow state": uniform_plan(
            LLAMA_3_1_8B, nodes=1, job=_job(options=narrow), micro_batch=1, tp=2, counts=(32,)
        ),
        "bf16 reduction": uniform_plan(
            LLAMA_3_1_8B, nodes=1, job=_job(options=Options(grad_reduce="bf16")), micro_batch=1, tp=1, counts=(32,)
        ),
        "fp32 reduction": uniform_plan(
            LLAMA_3_1_8B,
            nodes=1,
            job=_job(options=Options(grad_reduce="fp32")),
            micro_batch=1,
            tp=1,
            counts=(32,),
            sharding="none",
        ),
        "latent attention": uniform_plan(deepseek, job=_job(options=latent), tp=1, ep=16, **shared),
        "whole experts": uniform_plan(
            mixtral,
            nodes=2,
            job=_job(options=whole),
            micro_batch=1,
            tp=1,
            ep=8,
            counts=(32,),
            recompute=SELECTIVE,
        ),
        "all to all": uniform_plan(
            deepseek, job=_job(options=Options(dispatcher="alltoall")), tp=1, ep=16, **(shared | {"recompute": None})
        ),
    }


def _job(**told: Any) -> Job:
    return Job(**({"global_batch": 64, "seq_len": 4096} | told))


@cache
def torchtitan_plans() -> dict[str, Plan]:
    """Every degree, schedule, policy and model family of torchtitan's registry that a plan can have."""
    llama, large = shardwright.load_model("llama-3.1-8b"), shardwright.load_model("llama-3.1-70b")
    qwen, experts = shardwright.load_model("qwen3-8b"), shardwright.load_model("qwen3-30b-a3b")
    small = shardwright.load_model("llama-3.2-1b")
    even, uneven = (8, 8, 8, 8), (7, 9, 9, 7)
    return {
        "fsdp": uniform_plan(llama, nodes=1, job=_job(), micro_batch=1, tp=1, counts=(32,), sharding="zero3"),
        "fsdp kept": uniform_plan(llama, nodes=1, job=_job(), micro_batch=2, tp=1, counts=(32,), sharding="zero2"),
        "ddp": uniform_plan(small, nodes=1, job=_job(), micro_batch=4, tp=1, counts=(16,), sharding="none"),
        "tp and fsdp": uniform_plan(
            large, nodes=8, job=_job(), micro_batch=1, tp=8, counts=(80,), sharding="zero3", recompute=FULL
        ),
        "tp, async": uniform_plan(
            llama,
            nodes=1,
            job=_job(),
            micro_batch=1,
            tp=2,
            counts=(32,),
            sharding="zero3",
            overlap=Overlap(tensor_parallel=True),
        ),
        "context": uniform_plan(llama, nodes=2, job=_job(), micro_batch=1, tp=1, cp=4, counts=(32,), sharding="zero3"),
        "pipeline": uniform_plan(llama, nodes=1, job=_job(), micro_batch=1, tp=2, pp=4, counts=even, sharding="none"),
        "uneven": uniform_plan(llama, nodes=1, job=_job(), micro_batch=1, tp=1, pp=4, counts=uneven, sharding="none"),
        "interleaved": uniform_plan(
            llama, nodes=1, job=_job(), micro_batch=1, tp=2, pp=2, counts=uneven, sharding="none", recompute=SELECTIVE
        ),
        "70B interleaved": uniform_plan(
            large,
            nodes=8,
            job=_job(),
            micro_batch=1,
            tp=8,
            pp=4,
            counts=(9, 10, 10, 10, 10, 10, 11, 10),
            sharding="zero2",
        ),
        "qwen": uniform_plan(qwen, nodes=2, job=_job(), micro_batch=1, tp=2, counts=(36,), sharding="zero3"),
        "experts": uniform_plan(
            experts, nodes=4, job=_job(), micro_batch=1, tp=1, ep=8, counts=(48,), sharding="zero3", recompute=SELECTIVE
        ),
        "fp32": uniform_plan(
            small, nodes=1, job=_job(precision="fp32"), micro_batch=1, tp=1, counts=(16,), sharding="zero3"
        ),
        "steps": uniform_plan(
            llama, nodes=1, job=_job(tokens=1e9), micro_batch=1, tp=1, counts=(32,), sharding="zero3"
        ),
    }


@cache
def trainer_plans() -> dict[str, Plan]:
    """Plans without pipeline for Accelerate and DeepSpeed; each takes those that it can run."""
    plans = {
        f"{model.name} {sharding} tp {tp} cp {cp} {precision} {'again' if again else 'kept'}": replace(
            uniform_plan(
                model,
                nodes=nodes,
                job=_job(precision=precision),
                micro_batch=micro_batch,
                tp=tp,
                cp=cp,
                counts=(len(model.layers),),
                sharding=sharding,  # type: ignore[arg-type]
                recompute=FULL if again else None,
            ),
            sequence_parallel=False,
        )
        for model, nodes, micro_batch in ((LLAMA_3_1_8B, 1, 1), (LLAMA_2_70B, 4, 2))
        for sharding in ("none", "zero1", "zero2", "zero3")
        for tp, cp in ((1, 1), (2, 1), (1, 2))
        for precision, again in (("bf16", False), ("fp16", True))
    }
    plans["offloaded"] = replace(plans["llama-3.1-8b zero3 tp 1 cp 1 bf16 kept"], optimizer=_offloaded(0.5))
    return plans


def _offloaded(part: float) -> Any:
    found = PLANS["llama-2-70b-fsdp-offload"].optimizer
    return replace(found, offload=part)


MIXED_CLUSTERS = {
    "A100 + V100": ("1x8xA100-SXM-40+2x8xV100-SXM2", 64),
    "H100 + A100": ("1x8xH100-SXM+1x8xA100-SXM-80", 32),
    "three types": ("1x8xH100-SXM+1x8xA100-SXM-80+1x8xV100-SXM2", 48),
    "L4 + A10G": ("2x8xL4+1x8xA10G", 64),
}


@cache
def machine_plan(name: str) -> Plan:
    """Return a plan for targets that bring machines together: a uniform one that Megatron-LM runs, or a mixed one."""
    if name in PLANS:
        return PLANS[name]
    if name not in MIXED_CLUSTERS:
        return uniform_plan(MIXTRAL_8X7B, nodes=1, job=_job(), micro_batch=1, tp=2, ep=4, counts=(32,), recompute=FULL)
    cluster, batch = MIXED_CLUSTERS[name]
    precision = "fp16" if "V100" in cluster else "bf16"
    model, machines = shardwright.load_model("gpt2-medium"), shardwright.load_cluster(cluster)
    job = shardwright.make_job(global_batch=batch, seq_len=1024, precision=precision)
    return shardwright.plan(model, machines, job, gap=0.05, top=1).best


def machine_plans() -> dict[str, Plan]:
    return {name: machine_plan(name) for name in (*PLANS, "experts on one machine", *MIXED_CLUSTERS)}
