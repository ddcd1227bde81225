"""Launch files of Axolotl."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.importers.launch_cases import FULL8, LLAMA, ZERO3, Case, check, launch

AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
dataset_prepared_path: last_run_prepared
val_set_size: 0.02
output_dir: ./out
sequence_len: 8192
pad_to_sequence_len: true
gradient_accumulation_steps: 4
micro_batch_size: 1
num_epochs: 1
optimizer: adamw_torch_fused
lr_scheduler: cosine
learning_rate: 2e-5
bf16: auto
gradient_checkpointing: true
logging_steps: 1
flash_attention: true
warmup_ratio: 0.1
weight_decay: 0.0
special_tokens:
  pad_token: <|finetune_right_pad_id|>
"""
SHARDED = """fsdp_version: 2
fsdp_config:
  offload_params: false
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  transformer_layer_cls_to_wrap: LlamaDecoderLayer
  state_dict_type: FULL_STATE_DICT
  reshard_after_forward: true
"""
CASES = {
    "axolotl fsdp 2": Case(
        files={"train.yml": AXOLOTL + SHARDED},
        expected={**FULL8, "micro": 1, "batch": 32, "seq": 8192, "framework": "fsdp", "model": LLAMA},
    ),
    "axolotl fsdp 1": Case(
        files={"train.yml": AXOLOTL + "fsdp:\n  - full_shard\n  - auto_wrap\n"},
        expected={**FULL8, "batch": 32},
    ),
    "axolotl shards nothing": Case(
        files={"train.yml": AXOLOTL.replace("gradient_checkpointing: true\n", "")},
        expected={"gpus": 8, "sharding": "none", "precision": "bf16", "recompute": "none"},
    ),
    "axolotl deepspeed": launch(
        "axolotl train train.yml",
        {**FULL8, "batch": 32, "framework": "deepspeed"},
        files={"train.yml": AXOLOTL + "deepspeed: ds_z3.json\n", "ds_z3.json": ZERO3},
    ),
    "axolotl by accelerate": launch(
        "accelerate launch --num_processes 4 -m axolotl.cli.train train.yml --micro-batch-size 2",
        {"gpus": 4, "micro": 2, "batch": 32, "sharding": "zero3"},
        files={"train.yml": AXOLOTL + SHARDED},
    ),
    "axolotl tensor parallel": Case(
        files={"train.yml": AXOLOTL + SHARDED + "tensor_parallel_size: 2\ndp_shard_size: 4\n"},
        expected={"gpus": 8, "tp": 2, "batch": 16, "sharding": "zero3"},
    ),
    "axolotl sizes that make no run": Case(
        files={"train.yml": AXOLOTL + SHARDED + "tensor_parallel_size: 2\ndp_shard_size: 8\n"},
        expected="makes 16 of 8 GPUs",
    ),
    "axolotl qlora of 16 bits": Case(
        files={"train.yml": AXOLOTL + "adapter: qlora\nlora_r: 32\nlora_target_linear: true\n"},
        expected="adapter: is qlora, which goes with load_in_4bit",
    ),
    "axolotl dpo": Case(
        files={"train.yml": AXOLOTL + SHARDED + "rl: dpo\ndpo_beta: 0.1\n"},
        expected={**FULL8, "batch": 32, "seq": 8192, "preference": "dpo", "loss": "tiled"},
    ),
    "axolotl simpo": Case(
        files={"train.yml": AXOLOTL + SHARDED + "rl: simpo\nsimpo_gamma: 0.5\n"},
        expected={**FULL8, "preference": "cpo", "loss": None},
    ),
    "axolotl kto without a reference": Case(
        files={
            "train.yml": AXOLOTL.replace("micro_batch_size: 1", "micro_batch_size: 2")
            + SHARDED
            + "rl: kto\nprecompute_ref_log_probs: true\n"
        },
        expected={**FULL8, "preference": "kto:precomputed"},
    ),
    "axolotl rewards": Case(
        files={"train.yml": AXOLOTL + "reward_model: true\nnum_labels: 1\n"}, expected={"preference": "reward"}
    ),
    "axolotl rewards of steps": Case(
        files={"train.yml": AXOLOTL + "process_reward_model: true\n"},
        expected="process_reward_model: trains a model of rewards for each step",
    ),
    "axolotl grpo": Case(files={"train.yml": AXOLOTL + "rl: grpo\n"}, expected="rl: is grpo, trains by rewards"),
    "axolotl offloads": Case(
        files={"train.yml": AXOLOTL.replace("gradient_checkpointing: true", "gradient_checkpointing: offload_disk")},
        expected="gradient_checkpointing: is offload_disk, which offloads to disk",
    ),
    "axolotl galore": Case(
        files={
            "train.yml": AXOLOTL.replace("adamw_torch_fused", "galore_adamw")
            + "optim_target_modules: [self_attn, mlp]\noptim_args:\n  rank: 256\n  update_proj_gap: 50\n"
        },
        expected={"optimizer": "galore", "rank": 256},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_files_of_axolotl_are_read_right_or_refused_by_name(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)
