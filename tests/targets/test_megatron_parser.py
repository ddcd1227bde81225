"""The golden exports mean the same plan to Megatron-LM's own code. Optional: see megatron_venv.sh."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from tests.golden.plans import PLANS, uniform_plan
from tests.plans.meshes import mesh
from tests.plans.random_plans import collected
from tests.targets.expected import options
from tests.targets.plans import option_plans
from tests.targets.run_megatron import asked, case_of, checked

import shardwright
from shardwright.importers.megatron.flags import known_flags
from shardwright.plans.plan import Overlap, Plan
from shardwright.spec.job import Job

RANDOM_PLANS = 80
JOB = Job(global_batch=64, seq_len=4096)
FP8_FORMAT = {"delayed": "hybrid", "tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}  # Megatron-LM's own
MESHES = {"two types": mesh((4, "AH")), "three stages": mesh((2, "HHA")), "a stage on both": mesh((2, "HA"), (2, "AA"))}
FIXED = PLANS | MESHES | option_plans()
BROKEN = {
    "one layer too few": ("Et*9|t*10|", "Et*8|t*10|"),
    "a stage too many": ("t*10L", "t*9|tL"),
}


@functools.cache
def random_plans() -> dict[str, Plan]:
    """The same plans in every run; they go through Megatron in one process, since its import takes seconds."""
    return {f"random {index}": plan for index, plan in enumerate(collected(RANDOM_PLANS))}


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    cases = [case_of(name, plan) for name, plan in (FIXED | random_plans()).items()]
    sound = cases[0]
    for name, (old, new) in BROKEN.items():
        broken = [word.replace(old, new) for word in sound["arguments"]]
        assert broken != list(sound["arguments"])
        cases.append(sound | {"name": name, "arguments": broken})
    cases.append(sound | {"name": "a world that does not divide", "world_size": 250})
    return checked(cases)


def expected(plan: Plan) -> dict[str, Any]:
    """What Megatron must have made of a plan, in its own names."""
    replica = plan.replicas[0]
    stage, moe = replica.stages[0], next((kind.moe for kind in plan.model.kinds if kind.moe), None)
    attention = plan.model.kinds[0].self_attention
    chunks = plan.schedule.virtual_stages
    strategies = {"zero2": "optim_grads", "zero3": "optim_grads_params"}
    precision = plan.job.precision
    experts = [int(layer.moe is not None) for layer in plan.model.layers]
    layers = [[end - start for start, end in one.layers] for one in replica.stages]
    windows = {layer.self_attention.window for layer in plan.model.layers} - {None}
    return {
        "tensor_model_parallel_size": stage.tensor_parallel,
        "pipeline_model_parallel_size": len(replica.stages),
        "virtual_pipeline_model_parallel_size": chunks if chunks > 1 else None,
        "context_parallel_size": stage.context_parallel,
        "expert_model_parallel_size": stage.expert_parallel,
        "expert_tensor_parallel_size": stage.expert_tensor_parallel if moe else stage.tensor_parallel,
        "data_parallel_size": plan.data_parallel,
        "sequence_parallel": plan.sequence_parallel,
        "use_tp_pp_dp_mapping": plan.rank_order == "tp-cp-ep-pp-dp",
        "recompute_granularity": None if stage.recompute.granularity == "none" else stage.recompute.granularity,
        "recompute_method": stage.recompute.method,
        "recompute_num_layers": stage.recompute.layers,
        "use_distributed_optimizer": plan.optimizer.distributed,
        "use_megatron_fsdp": plan.optimizer.sharding in strategies,
        "data_parallel_sharding_strategy": strategies.get(plan.optimizer.sharding, "optim_grads_params"),
        "optimizer": plan.job.optimizer,
        "optimizer_cpu_offload": plan.optimizer.offload > 0,
        "optimizer_offload_fraction": plan.optimizer.offload or 1.0,
        "overlap_grad_reduce": plan.overlap.grad_reduce,
        "overlap_param_gather": plan.overlap.param_gather,
        "tp_comm_overlap": plan.overlap.tensor_parallel,
        "overlap_p2p_comm": plan.overlap.pipeline,
        "micro_batch_size": plan.micro_batch,
        "global_batch_size": plan.data_parallel * replica.micro_batches * plan.micro_batch,
        "seq_length": plan.job.seq_len,
        "train_iters": None if plan.job.iterations is None else -int(-plan.job.iterations // 1),
        "bf16": precision in ("bf16", "fp8"),
        "fp16": precision == "fp16",
        "fp8": FP8_FORMAT[plan.job.fp8_recipe or "delayed"] if precision == "fp8" else None,
        "fp8_recipe": plan.job.fp8_recipe or "delayed",
        "num_experts": moe.experts if moe else None,
        "mtp_num_layers": plan.model.mtp_layers or None,
        "multi_latent_attention": attention.latent is not None,
        "layers_of_stages": layers if len(replica.stages) > 1 else None,
        "attention_backend": "auto" if plan.flash_attention else "unfused",
        "num_query_groups": attention.kv_heads,
        "gated": plan.model.activation in ("silu", "quick_gelu"),
        "bias": [attention.out_bias, attention.qkv_bias],
        "window_size": [*(window - 1 for window in windows if window), 0] if windows else None,
        "moe_layer_freq": experts if moe and not all(experts) else 1,
        "options": options(plan),
    }


@pytest.mark.parametrize("name", FIXED)
def test_megatron_makes_the_same_plan_of_the_arguments(name: str, results: dict[str, dict[str, Any]]) -> None:
    assert results[name].get("error") is None
    assert results[name]["values"] == expected(FIXED[name])
    assert results[name]["broken"] == []


HYBRIDS = {
    "nemotron-nano-9b-v2": ((15, 14, 14, 13), 2),
    "nemotron-3-nano-30b-a3b": ((13, 13, 13, 13), 2),
    "qwen3-next-80b-a3b": ((12, 12, 12, 12), 2),
}


def test_megatron_takes_the_blocks_of_hybrids() -> None:
    """Its virtual stages are those of the plan: pipes of a pattern are counted, and letters validated."""
    plans = {
        name: uniform_plan(
            shardwright.load_model(name),
            nodes=2,
            job=JOB,
            micro_batch=1,
            tp=2,
            pp=pp,
            counts=counts,
            overlap=Overlap(pipeline=True),
        )
        for name, (counts, pp) in HYBRIDS.items()
    }
    results = checked([case_of(name, plan) for name, plan in plans.items()])
    for name, (counts, pp) in HYBRIDS.items():
        assert results[name].get("error") is None, name
        chunks = len(counts) // pp
        assert results[name]["values"]["virtual_pipeline_model_parallel_size"] == (chunks if chunks > 1 else None)
        assert results[name]["broken"] == []


def test_megatron_makes_the_same_plans_of_random_ones(results: dict[str, dict[str, Any]]) -> None:
    for name, plan in random_plans().items():
        assert results[name].get("error") is None, plan
        assert results[name]["values"] == expected(plan), plan


@pytest.mark.parametrize("name", [*BROKEN, "a world that does not divide"])
def test_the_check_can_fail(name: str, results: dict[str, dict[str, Any]]) -> None:
    assert results[name].get("error")


def test_defaults_are_those_of_the_parser() -> None:
    """A norm's epsilon is left to the model. What YaRN is told is None to the parser: `MLATransformerConfig` and
    `YarnRotaryEmbedding` have the defaults."""
    told = asked("", "defaults")
    read = {flag: known for flag, known in known_flags().items() if known.reads and flag in told}
    assert len(read) > 100
    for flag, known in read.items():
        assert flag == "--norm-epsilon" or _of_yarn(flag) or _number(known.default) == _number(told[flag]), flag


def _of_yarn(flag: str) -> bool:
    return flag == "--rope-type" or flag.startswith("--yarn-")


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
