"""What is said beside a launch is read by it, or refused; launches of trainers that are not read name what is."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwright
from shardwright.errors import SpecError
from shardwright.importers.launch import plan_from_launch
from shardwright.importers.megatron.plan import BALANCED

ARGUMENTS = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 "
    "--seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --bf16 --global-batch-size 64 "
)
CLUSTER = "1x8xA100-SXM-80"
SCRIPT = ARGUMENTS + '--micro-batch-size $1 --tensor-model-parallel-size ${TP:-1} "${@:2}"\n'
CONFIGURATION = (
    "base_model: meta-llama/Llama-3.2-1B\nmicro_batch_size: 1\nsequence_len: 2048\nadapter: lora\nlora_r: 8\n"
)
AXOLOTL = CONFIGURATION + "lora_target_linear: true\ndatasets:\n  - path: x\n    type: alpaca\n"


def read(folder: Path, text: str, name: str = "run.sh", cluster: str = CLUSTER, **said: object) -> shardwright.Plan:
    (folder / name).write_text(text, encoding="utf-8")
    return plan_from_launch(folder / name, cluster=shardwright.load_cluster(cluster), **said).plan  # type: ignore[arg-type]


def test_variables_and_arguments_that_a_script_reads_move_the_plan(tmp_path: Path) -> None:
    plan = read(tmp_path, SCRIPT, environment={"TP": "4"}, arguments=("2", "--use-distributed-optimizer"))
    assert (plan.micro_batch, plan.stages[0].tensor_parallel, plan.optimizer.sharding) == (2, 4, "zero1")
    one = read(tmp_path, SCRIPT, environment={"CUDA_VISIBLE_DEVICES": "0"}, arguments=("2",))
    assert one.micro_batch == 2


@pytest.mark.parametrize(
    ("text", "name", "said", "words"),
    [
        (SCRIPT, "run.sh", {"environment": {"TPP": "4"}, "arguments": ("2",)}, r"--env TPP: .*did you mean TP\?"),
        (ARGUMENTS + "--micro-batch-size 1", "run.sh", {"environment": {"TP": "4"}}, r"--env TP: .*leave it out"),
        (
            ARGUMENTS + "--micro-batch-size 1",
            "run.sh",
            {"arguments": ("plan.json",)},
            r"plan.json: .*reads no arguments",
        ),
        (AXOLOTL, "train.yaml", {"environment": {"TP": "4"}}, r"--env TP: is for scripts"),
    ],
)
def test_what_is_said_for_nothing_is_refused(
    text: str, name: str, said: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=words):
        read(tmp_path, text, name, **said)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type lora", "ms-swift's.*LLaMA-Factory.*--framework deepspeed"),
        ("NPROC_PER_NODE=8 swift pt --model Qwen/Qwen2.5-7B", "ms-swift's.*LLaMA-Factory"),
        ("megatron sft --load Qwen2.5-7B-mcore --tensor_model_parallel_size 2", "ms-swift's.*--framework megatron"),
        ("xtuner train llama3_8b_instruct_qlora.py --deepspeed deepspeed_zero2", "XTuner's.*--framework deepspeed"),
        ("litgpt finetune_lora meta-llama/Llama-3.1-8B --devices 8", "LitGPT's.*--framework fsdp"),
        ("colossalai run --nproc_per_node 8 train.py", "Colossal-AI.*shardwright plan"),
        ("python3 -m verl.trainer.main_ppo data.train_files=x", "rewards"),
        ("python -m openrlhf.cli.train_ppo_ray --pretrain x", "rewards"),
        ("deepspeed --module openrlhf.cli.train_sft --pretrain x", "reinforcement learning"),
    ],
)  # fmt: skip
def test_trainers_that_are_not_read_are_named_with_those_that_are(line: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=words):
        read(tmp_path, f"#!/bin/bash\nset -e\n{line}\n")


def test_a_folder_of_an_unread_trainer_does_not_hide_a_launch(tmp_path: Path) -> None:
    plan = read(tmp_path, f"cd slime\npip install xtuner\n{ARGUMENTS} --micro-batch-size 2\n")
    assert plan.micro_batch == 2


@pytest.mark.parametrize("balancing", [*sorted(BALANCED), "sinkhorn", "seq_aux_loss sinkhorn", ""])
@pytest.mark.parametrize("capacity", ["1.25", "-1", ""])
def test_a_capacity_stands_beside_routers_that_have_one_alone(balancing: str, capacity: str, tmp_path: Path) -> None:
    line = f"{ARGUMENTS} --micro-batch-size 1 --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 2"
    line += f" --moe-router-load-balancing-type {balancing}" if balancing else ""
    line += f" --moe-expert-capacity-factor {capacity}" if capacity else ""
    if capacity == "1.25" and "sinkhorn" in balancing:
        with pytest.raises(SpecError, match=r"--moe-expert-capacity-factor: stands beside .*sinkhorn"):
            read(tmp_path, line)
    else:
        assert read(tmp_path, line).job.options.expert_capacity == (1.25 if capacity == "1.25" else None)


@pytest.mark.parametrize(
    ("cluster", "said", "precision"),
    [
        ("1x8xV100-SXM2", "", "fp16"),
        ("1x8xV100-SXM2", "bf16: auto\n", "fp16"),
        ("1x8xV100-SXM2", "bf16: auto\nfp16: true\n", "fp16"),
        ("1x8xT4", "bf16: auto\n", "fp16"),
        ("1x8xA100-SXM-80", "bf16: auto\n", "bf16"),
        ("1x8xA100-SXM-80", "", "bf16"),
        ("1x8xA100-SXM-80", "bf16: false\nfp16: true\n", "fp16"),
    ],
)
def test_axolotl_takes_the_sixteen_bits_that_the_gpus_have(
    cluster: str, said: str, precision: str, tmp_path: Path
) -> None:
    assert read(tmp_path, AXOLOTL + said, "train.yaml", cluster).job.precision == precision


def test_bf16_that_is_asked_for_by_name_is_refused_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot compute in bf16"):
        shardwright.evaluate(read(tmp_path, AXOLOTL + "bf16: true\n", "train.yaml", "1x8xV100-SXM2"))
