"""Megatron-LM exports: golden files, what is refused, and the launch scripts."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.golden.plans import GPT_3_175B, H100, LLAMA_2_70B, LLAMA_3_1_8B, MIXTRAL_8X7B, PLANS, uniform_plan

from shardwright import Job, Model, SpecError, to_megatron
from shardwright.exporters.megatron.launch import OWN_SETTINGS, launch_script
from shardwright.exporters.megatron.limits import unsupported
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule
from shardwright.spec.catalog.gpus import find_gpu
from shardwright.spec.forward_pass import RotaryScaling

GOLDEN = Path(__file__).parent.parent / "golden" / "megatron"
BASE = PLANS["llama-2-70b-interleaved"]


def golden_text(plan: Plan) -> str:
    """Machines, environment and arguments, one a line: what a reviewer compares."""
    export = to_megatron(plan)
    lines = [f"# {export.version}: {export.nodes} nodes of {export.gpus_per_node} GPUs"]
    lines += [f"# unset {name}" if value is None else f"# {name}={value}" for name, value in export.environment]
    lines += [shlex.join(argument) for group in export.groups for argument in group.arguments]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", PLANS)
def test_arguments_are_those_on_file(name: str) -> None:
    """Set SHARDWRIGHT_WRITE_GOLDEN to write the files anew, then read the difference."""
    path, text = GOLDEN / f"{name}.txt", golden_text(PLANS[name])
    if os.environ.get("SHARDWRIGHT_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def one_replica_differs(plan: Plan) -> Plan:
    (replica,) = plan.replicas
    few = replace(replica, count=1, micro_batches=replica.micro_batches + 1)
    rest = replace(replica, count=replica.count - 1, stages=replica.stages)
    return replace(plan, replicas=(few, rest))


def stage_differs(plan: Plan, **changes: object) -> Plan:
    (replica,) = plan.replicas
    stages = (*replica.stages[:2], replace(replica.stages[2], **changes), *replica.stages[3:])  # type: ignore[arg-type]
    return replace(plan, replicas=(replace(replica, stages=stages),))


def with_model(model: Model) -> Plan:
    return replace(BASE, model=model)


def changed_layers(model: Model, **changes: object) -> Model:
    return replace(model, layers=tuple(replace(layer, **changes) for layer in model.layers))  # type: ignore[arg-type]


GELU_GATED = replace(LLAMA_2_70B, activation="gelu_pytorch_tanh")
ENCODER_LAYER = replace(LLAMA_2_70B.layers[0], attention=replace(LLAMA_2_70B.layers[0].self_attention, causal=False))
WIDER = replace(LLAMA_2_70B.layers[0], attention=replace(LLAMA_2_70B.layers[0].self_attention, kv_heads=16))
VOLTA = replace(H100, name="V100-SXM2", compute_capability="7.0", peak_flops=(("fp16", 125e12),))


@pytest.mark.parametrize(
    ("plan", "path"),
    [
        (one_replica_differs(BASE), "replicas"),
        (stage_differs(BASE, recompute=Recompute()), "replicas[0].stages[2].recompute"),
        (stage_differs(BASE, tensor_parallel=4), "replicas[0].stages[2].tensor_parallel"),
        (with_model(replace(LLAMA_2_70B, position="alibi")), "model.position"),
        (with_model(replace(LLAMA_2_70B, embedding_norm=True)), "model.embedding_norm"),
        (with_model(replace(LLAMA_2_70B, head_bias=True)), "model.head_bias"),
        (with_model(replace(LLAMA_2_70B, rotary_base=10000.5)), "model.rotary_base"),
        (with_model(changed_layers(LLAMA_2_70B, norms=4)), "model.layers (kind 0).norms"),
        (with_model(GELU_GATED), "model.activation"),
        (with_model(replace(LLAMA_2_70B, layers=(ENCODER_LAYER,) * 80)), "model.layers (kind 0).attention.causal"),
        (with_model(replace(LLAMA_2_70B, layers=(*LLAMA_2_70B.layers[1:], WIDER))), "model.layers"),
        (replace(PLANS["gpt-3-175b"], overlap=Overlap(pipeline=True)), "overlap.pipeline"),
        (replace(PLANS["windows-plain"], overlap=Overlap()), "overlap.pipeline"),
        (replace(PLANS["mixtral-8x7b-experts"], sequence_parallel=False), "sequence_parallel"),
        (replace(PLANS["mixtral-8x7b-experts"], rank_order="tp-cp-ep-pp-dp"), "rank_order"),
        (replace(BASE, job=replace(BASE.job, precision="fp8", fp8_recipe="mxfp8")), "job.fp8_recipe"),
        (replace(BASE, job=replace(BASE.job, precision="fp32")), "flash_attention"),
        (replace(PLANS["llama-3.1-8b-context"], flash_attention=False), "replicas[0].stages[0].context_parallel"),
    ],
)
def test_what_megatron_cannot_say_is_refused_by_name(plan: Plan, path: str) -> None:
    problems = unsupported(plan)
    assert path in {problem.path for problem in problems}
    assert all(problem.hint for problem in problems)


@pytest.mark.parametrize(
    ("recipe", "capability", "runs"),
    [
        ("blockwise", "9.0", True),
        ("blockwise", "10.0", False),
        ("mxfp8", "10.0", True),
        ("mxfp8", "9.0", False),
        ("mxfp8", "12.0", False),
        ("delayed", "8.9", True),
    ],
)
def test_recipes_of_fp8_need_their_gpus(recipe: str, capability: str, runs: bool) -> None:
    plan = PLANS["llama-2-70b-interleaved"]
    (pool,) = plan.cluster.pools
    cluster = replace(plan.cluster, pools=(replace(pool, gpu=replace(pool.gpu, compute_capability=capability)),))
    job = replace(plan.job, precision="fp8", fp8_recipe=recipe)  # type: ignore[arg-type]
    faults = [problem.path for problem in unsupported(replace(plan, job=job, cluster=cluster))]
    assert ("job.fp8_recipe" in faults) is not runs


def test_flash_attention_is_refused_before_ampere() -> None:
    job = Job(global_batch=64, seq_len=2048, precision="fp16")
    plan = uniform_plan(GPT_3_175B, nodes=8, job=job, micro_batch=1, tp=8, pp=8, counts=(12,) * 8, gpu=VOLTA)
    assert [problem.path for problem in unsupported(plan)] == ["flash_attention"]
    words = to_megatron(replace(plan, flash_attention=False)).arguments
    assert words[words.index("--attention-backend") + 1] == "unfused"


@pytest.mark.parametrize("name", PLANS)
def test_the_kernel_of_attention_is_never_named_where_it_is_fused(name: str) -> None:
    """`flash` forbids cuDNN's kernels, so latent attention would have none."""
    plan = PLANS[name]
    assert ("--attention-backend" in to_megatron(plan).arguments) is not plan.flash_attention


@pytest.mark.parametrize("name", PLANS)
def test_every_export_logs_its_throughput_and_makes_no_mask(name: str) -> None:
    words = to_megatron(PLANS[name]).arguments
    assert "--no-create-attention-mask-in-dataloader" in words
    assert words[words.index("--log-interval") - 1 :][:3] == ("--log-throughput", "--log-interval", "1")


@pytest.mark.parametrize(("kv_heads", "exchange"), [(32, "a2a"), (8, "a2a"), (4, "all_gather")])
def test_windows_do_not_go_round_the_ring(kv_heads: int, exchange: str) -> None:
    plan = PLANS["llama-3.1-8b-context"]
    assert "--cp-comm-type" not in to_megatron(plan).arguments
    layer = plan.model.layers[0]
    attention = replace(layer.self_attention, window=4096, kv_heads=kv_heads)
    model = replace(plan.model, layers=(replace(layer, attention=attention),) * len(plan.model.layers))
    words = to_megatron(replace(plan, model=model)).arguments
    assert words[words.index("--cp-comm-type") + 1] == exchange


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        (RotaryScaling(kind="llama3", factor=8.0), "--use-rope-scaling --rope-scaling-factor 8.0"),
        (RotaryScaling(kind="linear", factor=4.0), "--rotary-seq-len-interpolation-factor 4"),
    ],
)
def test_what_only_training_needs_is_exported(scaling: RotaryScaling, words: str) -> None:
    text = " ".join(to_megatron(with_model(replace(LLAMA_2_70B, norm_epsilon=1e-6, rotary_scaling=scaling))).arguments)
    assert words in text
    assert "--norm-epsilon 1e-06" in text


def test_interleaved_positions_are_exported() -> None:
    glm = with_model(replace(LLAMA_2_70B, rotary_interleaved=True, rotary_fraction=0.5))
    assert "--rotary-interleaved" in to_megatron(glm).arguments
    assert "--rotary-interleaved" not in to_megatron(BASE).arguments


def test_weights_of_norms_about_one_are_exported() -> None:
    assert "--apply-layernorm-1p" in to_megatron(with_model(replace(LLAMA_2_70B, norm_about_one=True))).arguments
    assert "--apply-layernorm-1p" not in to_megatron(BASE).arguments


def test_the_router_travels() -> None:
    plan = PLANS["mixtral-8x7b-experts"]
    layer = plan.model.layers[0]
    assert layer.moe is not None
    moe = replace(layer.moe, router_groups=4, router_top_groups=2, router_scaling=2.5, pre_softmax=True)
    model = replace(plan.model, layers=(replace(layer, moe=moe),) * len(plan.model.layers))
    text = " ".join(to_megatron(replace(plan, model=model)).arguments)
    assert "--moe-router-num-groups 4 --moe-router-group-topk 2 --moe-router-topk-scaling-factor 2.5" in text
    assert "--moe-router-pre-softmax" in text


@pytest.mark.parametrize(
    "scaling", [RotaryScaling(kind="longrope", factor=40.0), RotaryScaling(kind="llama3", factor=8.0, high_factor=2.0)]
)
def test_a_scaling_without_argument_is_noted(scaling: RotaryScaling) -> None:
    export = to_megatron(with_model(replace(LLAMA_2_70B, rotary_scaling=scaling)))
    assert f"scales rotary positions ({scaling.kind}" in export.groups[0].note


def test_amd_has_one_hardware_queue() -> None:
    plan = uniform_plan(LLAMA_2_70B, nodes=8, job=BASE.job, micro_batch=1, tp=8, pp=8, counts=(10,) * 8,
                        gpu=find_gpu("MI300X"))  # fmt: skip
    assert dict(to_megatron(plan).environment)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_delayed_scaling_has_a_history() -> None:
    job = replace(BASE.job, precision="fp8", fp8_recipe="delayed")
    words = to_megatron(replace(BASE, job=job)).arguments
    assert words[words.index("--fp8-amax-history-len") + 1] == "1024"
    assert (
        "--fp8-amax-history-len" not in to_megatron(replace(BASE, job=replace(job, fp8_recipe="tensorwise"))).arguments
    )


def test_offload_is_adams() -> None:
    plan = PLANS["llama-2-70b-fsdp-offload"]
    sgd = replace(plan, job=replace(plan.job, optimizer="sgd"))
    assert [problem.path for problem in unsupported(sgd)] == ["optimizer.offload"]


def test_fp8_sizes_must_suit_the_kernels() -> None:
    layer = LLAMA_3_1_8B.layers[0]
    assert layer.mlp is not None
    narrow = changed_layers(LLAMA_3_1_8B, mlp=replace(layer.mlp, width=14320))
    plan = replace(PLANS["llama-3.1-8b-context"], model=narrow)
    assert [problem.message for problem in unsupported(plan)] == [
        "fp8 needs multiples of 16; the feed-forward width of a rank is 7160"
    ]


def test_illegal_plans_are_refused_with_every_reason() -> None:
    broken = replace(BASE, optimizer=OptimizerPlan(offload=2.0), micro_batch=2)
    with pytest.raises(SpecError) as caught:
        to_megatron(broken)
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"replicas", "optimizer.offload", "overlap.param_gather"}


def test_expert_flags_need_experts_and_modern_gpus() -> None:
    assert "--moe-grouped-gemm" in to_megatron(PLANS["mixtral-8x7b-experts"]).arguments
    assert not any(word.startswith("--moe") for word in to_megatron(BASE).arguments)
    volta = uniform_plan(
        MIXTRAL_8X7B,
        nodes=8,
        job=Job(global_batch=64, seq_len=4096, precision="fp16"),
        micro_batch=1,
        tp=1,
        ep=8,
        counts=(32,),
        gpu=VOLTA,
    )
    assert "--moe-grouped-gemm" not in to_megatron(replace(volta, flash_attention=False)).arguments


def test_machines_have_the_processes_of_the_placement(tmp_path: Path) -> None:
    (replica,) = PLANS["windows-plain"].replicas
    job = replace(PLANS["windows-plain"].job, global_batch=8)
    half = replace(PLANS["windows-plain"], job=job, replicas=(replace(replica, count=1),))
    assert (to_megatron(half).nodes, to_megatron(half).gpus_per_node) == (1, 4)
    assert (to_megatron(BASE).nodes, to_megatron(BASE).gpus_per_node) == (32, 8)
    stages = tuple(
        replace(stage, tensor_parallel=4, layers=((index, index + 1),))
        for index, stage in enumerate(BASE.replicas[0].stages[:3])
    )
    twelve = replace(
        BASE,
        model=replace(LLAMA_2_70B, layers=LLAMA_2_70B.layers[:3]),
        schedule=Schedule(),
        replicas=(Replica(count=1, micro_batches=512, stages=stages),),
        overlap=Overlap(),
    )
    export = to_megatron(twelve)
    assert export.machine_gpus == (8, 4)  # six on each would cut the second tensor-parallel group
    for launcher in ("torchrun", "slurm"):
        script = launch_script(twelve, export, launcher)  # type: ignore[arg-type]
        assert words_of(script, tmp_path, rank=1)[3] == "4"


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
@pytest.mark.parametrize("name", PLANS)
def test_scripts_hand_the_arguments_to_the_program(name: str, launcher: str, tmp_path: Path) -> None:
    export = to_megatron(PLANS[name])
    words = words_of(launch_script(PLANS[name], export, launcher), tmp_path)  # type: ignore[arg-type]
    arguments = words[words.index("own MEGATRON_PATH/pretrain_gpt.py") + 1 :]
    assert tuple(arguments[: len(export.arguments)]) == export.arguments
    assert arguments[len(export.arguments) :][:2] == ["--data-path", "own DATA_PATH"]
    assert words[:4] == ["--nnodes", str(export.nodes), "--nproc-per-node", str(export.gpus_per_node)]


def words_of(text: str, folder: Path, rank: int = 0) -> list[str]:
    """Return what a script hands to torchrun, for which a program stands in that prints its arguments."""
    script = folder / "launch.sh"
    script.write_text(text, encoding="utf-8")
    stand_ins = {
        "torchrun": 'printf "%s\\n" "$@"',
        "srun": 'while [ "$1" != bash ]; do shift; done; exec "$@"',
        "scontrol": "echo host",
    }
    for program, body in stand_ins.items():
        (folder / program).write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        (folder / program).chmod(0o755)
    settings = {setting: f"own {setting}" for setting, _ in OWN_SETTINGS} | {"TRAIN_ITERS": "10"}
    settings |= {"NODE_RANK": str(rank), "MASTER_ADDR": "host", "SLURM_NODEID": str(rank)}
    settings |= {"SLURM_JOB_NODELIST": "host", "SLURM_JOB_ID": "1"}
    environment = settings | {"PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_scripts_name_the_setting_that_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(launch_script(BASE, to_megatron(BASE)), encoding="utf-8")
    done = subprocess.run(["bash", str(script)], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode != 0 and "MEGATRON_PATH" in done.stderr


def test_names_cannot_smuggle_commands_into_a_script() -> None:
    plan = replace(BASE, model=replace(LLAMA_2_70B, name="x\ntouch owned"))
    lines = launch_script(plan, to_megatron(plan)).splitlines()
    assert not any(line.startswith("touch") for line in lines)
    assert any(line.startswith("# x touch owned on 256 H100-SXM") for line in lines)
