"""Weights kept and gathered in fp8 (Megatron-LM's --fp8-param-gather): planned, priced, written and read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import shardwright
from shardwright import Job, Plan, check
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.memory.sizes import weight_bytes
from shardwright.importers.launch import plan_from_launch
from shardwright.spec.options import Options

FP8 = Job(global_batch=32, seq_len=4096, precision="fp8")
KEPT = replace(FP8, options=Options(param_gather="fp8"))


def planned(job: Job) -> Plan:
    return shardwright.plan("llama-3.1-8b", "2x8xH100-SXM", job, framework="megatron", top=1).best


def test_a_weight_is_two_bytes_and_one_on_the_way() -> None:
    """In fp8 and transposed, beside no 16-bit one."""
    assert (weight_bytes(FP8), weight_bytes(KEPT)) == (4.0, 2.0)
    assert (widths_of(FP8).weight_gather, widths_of(KEPT).weight_gather) == (2.0, 1.0)
    assert widths_of(KEPT).saved_inner == widths_of(FP8).saved_inner
    assert widths_of(KEPT).gradient_reduction == widths_of(FP8).gradient_reduction


@pytest.mark.parametrize("target", ["megatron", "bridge"])
@pytest.mark.parametrize("job", [KEPT, FP8])
def test_a_plan_comes_back_as_it_is_written(target: str, job: Job, tmp_path: Path) -> None:
    plan = planned(job)
    assert plan.job.options.param_gather == job.options.param_gather
    assert plan.optimizer.sharding == "zero1" or job is FP8
    for file, text in shardwright.export(plan, target).files.items():
        (tmp_path / file).write_text(text)
    names = (
        "NODE_RANK",
        "MASTER_ADDR",
        "LEARNING_RATE",
        "DATA_PATH",
        "TOKENIZER_MODEL",
        "CHECKPOINT_DIR",
        "TRAIN_ITERS",
    )
    (script,) = tmp_path.glob("*.sh")
    read = plan_from_launch(script, cluster=plan.cluster, environment=dict.fromkeys(names, "1"))
    assert read.plan.job.options.param_gather == job.options.param_gather
    assert not any("param-gather" in words for words in read.uncounted)


def test_recipes_of_bridge_keep_weights_in_fp8_unless_they_say_no(tmp_path: Path) -> None:
    base = (
        "model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, vocab_size: 32000, ffn_hidden_size: 2048}\n"
    )
    base += "train: {global_batch_size: 8, micro_batch_size: 1}\ndataset: {seq_length: 2048}\n"
    base += "ddp: {use_distributed_optimizer: true}\n"
    for mixed, gathered in {
        "mixed_precision: bf16_with_fp8_current_scaling_mixed": "fp8",
        "mixed_precision: bf16_with_fp8_delayed_scaling_mixed\nfp8_param_gather: false": None,
        "mixed_precision: bf16_with_fp8_subchannel_scaling_mixed": None,
    }.items():
        path = tmp_path / "recipe.yaml"
        path.write_text(base + mixed + "\n")
        read = plan_from_launch(path, cluster=shardwright.load_cluster("1x8xH100-SXM"))
        assert read.plan.job.options.param_gather == gathered, mixed


def test_what_does_not_go_together_is_said() -> None:
    plan = planned(KEPT)
    assert not check(plan)
    for wrong, place in (
        (replace(plan, job=replace(KEPT, precision="bf16")), "job.options.param_gather"),
        (replace(plan, job=replace(KEPT, fp8_recipe="mxfp8")), "job.options.param_gather"),
        (replace(plan, optimizer=replace(plan.optimizer, sharding="none")), "optimizer.sharding"),
    ):
        assert place in [problem.path for problem in check(wrong)]
