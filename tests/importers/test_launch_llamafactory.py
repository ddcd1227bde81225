"""Launch files of LLaMA-Factory: it recomputes unless it is told not to, and trains adapters unless it is told otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.importers.launch_cases import FOUR, FULL8, LLAMA, ZERO3, Case, check, launch

FACTORY = """### model
model_name_or_path: meta-llama/Llama-3.1-8B
trust_remote_code: true
### method
stage: sft
do_train: true
finetuning_type: full
### dataset
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 4096
max_samples: 1000
preprocessing_num_workers: 16
### output
output_dir: saves/llama3
logging_steps: 10
save_steps: 500
plot_loss: true
report_to: none
### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
"""
DEEP = FACTORY + "deepspeed: ds_z3.json\n"


def _factory(change: str, refused: str, text: str = DEEP) -> Case:
    key = change.partition(":")[0]
    lines = [line for line in text.splitlines() if not line.startswith(f"{key}:")]
    return Case(files={"train.yaml": "\n".join([*lines, change]) + "\n", "ds_z3.json": ZERO3}, expected=refused)


CASES = {
    "factory zero 3": Case(
        files={"train.yaml": DEEP, "ds_z3.json": ZERO3},
        expected={**FULL8, "micro": 1, "batch": 16, "seq": 4096, "framework": "deepspeed", "model": LLAMA},
    ),
    "factory without recomputation": Case(
        files={"train.yaml": FACTORY + "disable_gradient_checkpointing: true\n"},
        expected={"gpus": 8, "sharding": "none", "recompute": "none", "framework": "fsdp"},
    ),
    "factory on two machines": launch(
        "FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 llamafactory-cli train train.yaml",
        {"gpus": 16, "batch": 32, "sharding": "zero3", "recompute": "full"},
        cluster=FOUR,
        files={"train.yaml": DEEP, "ds_z3.json": ZERO3},
    ),
    "factory on unknown machines": launch(
        "export NNODES=$SLURM_NNODES\nllamafactory-cli train train.yaml per_device_train_batch_size=4",
        {"gpus": 32, "micro": 4, "batch": 256},
        cluster=FOUR,
        files={"train.yaml": DEEP, "ds_z3.json": ZERO3},
        words=("${SLURM_NNODES} machines are not known: all 4 of the cluster",),
    ),
    "factory in words": launch(
        "torchrun --nproc_per_node 8 src/train.py --stage sft --finetuning_type full --deepspeed ds_z3.json "
        "--dataset alpaca --template llama3 --cutoff_len 1024 --model_name_or_path meta-llama/Llama-3.1-8B "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 1 --bf16 --output_dir out",
        {**FULL8, "micro": 2, "batch": 16, "seq": 1024},
        files={"ds_z3.json": ZERO3},
    ),
    "factory with adapters of a file": _factory(
        "finetuning_type: lora\nadapter_name_or_path: saves/lora",
        "adapter_name_or_path: is saves/lora: continues adapters",
    ),
    "factory freeze": _factory("finetuning_type: freeze", "finetuning_type: is freeze"),
    "factory ppo": _factory("stage: ppo", "stage: is ppo, trains by rewards"),
    "factory rewards": _factory("stage: rm", "stage: is rm, trains by rewards"),
    "factory galore": Case(
        files={"train.yaml": FACTORY + "use_galore: true\ngalore_rank: 128\ngalore_target: all\n"},
        expected={"optimizer": "galore", "rank": 128, "sharding": "none"},
    ),
    "factory apollo": Case(
        files={"train.yaml": FACTORY + "use_apollo: true\n"}, expected={"optimizer": "apollo", "rank": 16}
    ),
    "factory galore under DeepSpeed": _factory("use_galore: true", "use_galore: projects whole matrices"),
    "factory badam": _factory("use_badam: true", "use_badam: keeps state", FACTORY),
    "factory adam mini": _factory("use_adam_mini: true", "use_adam_mini: Adam-mini", FACTORY),
    "factory mixture of depths": _factory("mixture_of_depths: convert", "mixture_of_depths: is convert", FACTORY),
    "factory quantized": _factory("quantization_bit: 4", "quantization_bit: quantises weights that are trained"),
    "factory muon": _factory("use_muon: true", "use_muon: Muon"),
    "factory slip": _factory("cutof_len: 2048", "cutof_len: is no key of this trainer .did you mean cutoff_len"),
}


@pytest.mark.parametrize("name", CASES)
def test_files_of_llamafactory_are_read_right_or_refused_by_name(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)
