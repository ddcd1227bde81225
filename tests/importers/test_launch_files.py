"""Launch files as people write them for eight trainers: read as each trainer would run them, or refused by name.

What is expected was worked out by hand, from each trainer's own defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shardwright import SpecError, load_cluster, load_model
from shardwright.importers.launch import plan_from_launch

ONE, TWO, FOUR = "1x8xH100-SXM", "2x8xH100-SXM", "4x8xH100-SXM"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file with those beside it, and what a plan of it has; or the words with which it is refused. `words` are what
    the screen must name beside the plan."""

    files: dict[str, str]
    expected: dict[str, Any] | str
    cluster: str = ONE
    model: str | None = None
    seq_len: int | None = None
    arguments: tuple[str, ...] = ()
    words: tuple[str, ...] = field(default=())


def shape(plan: Any) -> dict[str, Any]:
    (replica,) = plan.replicas
    stage = replica.stages[0]
    return {
        "gpus": plan.gpus,
        "tp": stage.tensor_parallel,
        "cp": stage.context_parallel,
        "pp": len(replica.stages),
        "ep": stage.expert_parallel,
        "micro": plan.micro_batch,
        "batch": plan.job.global_batch,
        "seq": plan.job.seq_len,
        "sharding": plan.optimizer.sharding,
        "offload": plan.optimizer.offload,
        "precision": plan.job.precision,
        "recompute": stage.recompute.granularity,
        "layers": stage.recompute.layers,
        "framework": plan.job.framework,
        "optimizer": plan.job.optimizer,
        "rank": plan.job.optimizer_rank,
        "flash": plan.flash_attention,
        "model": plan.model.name,
    }


ZERO3 = '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "zero_optimization": {"stage": 3, "overlap_comm": true, "stage3_gather_16bit_weights_on_model_save": true}, "bf16": {"enabled": "auto"}}'
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
FSDP2 = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
machine_rank: 0
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
"""
TRAIN = "--model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 --max_seq_length 2048"
TITAN = """[job]
dump_folder = "./outputs"
[profiling]
enable_profiling = true
[metrics]
log_freq = 10
[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets"
[optimizer]
name = "AdamW"
lr = 3e-4
[lr_scheduler]
warmup_steps = 200
[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"
[checkpoint]
enable = false
interval = 500
[compile]
enable = true
components = ["model", "loss"]
"""
MEGATRON = (
    "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear "
    "--position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 8192 "
    "--max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size 4 "
    "--use-distributed-optimizer --lr 1e-4 --train-iters 100 --attention-dropout 0 --hidden-dropout 0"
)
RECIPE = """from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge import AutoBridge

def llama_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False)
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.seq_length = 8192
    cfg.train.global_batch_size = 64
    cfg.train.micro_batch_size = 1
{}
    return cfg
"""
LLAMA = "llama-3.1-8b"


def _factory(change: str, refused: str, text: str = DEEP) -> Case:
    key = change.partition(":")[0]
    lines = [line for line in text.splitlines() if not line.startswith(f"{key}:")]
    return Case(files={"train.yaml": "\n".join([*lines, change]) + "\n", "ds_z3.json": ZERO3}, expected=refused)


def _line(line: str, expected: dict[str, Any] | str, **more: Any) -> Case:
    files = more.pop("files", {})
    return Case(files={"run.sh": f"#!/bin/bash\n{line}\n", **files}, expected=expected, **more)


FULL8 = {"gpus": 8, "tp": 1, "sharding": "zero3", "precision": "bf16", "recompute": "full", "flash": True}
CASES = {
    # LLaMA-Factory: it recomputes unless it is told not to, and trains adapters unless it is told otherwise.
    "factory zero 3": Case(
        files={"train.yaml": DEEP, "ds_z3.json": ZERO3},
        expected={**FULL8, "micro": 1, "batch": 16, "seq": 4096, "framework": "deepspeed", "model": LLAMA},
    ),
    "factory without recomputation": Case(
        files={"train.yaml": FACTORY + "disable_gradient_checkpointing: true\n"},
        expected={"gpus": 8, "sharding": "none", "recompute": "none", "framework": "fsdp"},
    ),
    "factory on two machines": _line(
        "FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 llamafactory-cli train train.yaml",
        {"gpus": 16, "batch": 32, "sharding": "zero3", "recompute": "full"},
        cluster=FOUR,
        files={"train.yaml": DEEP, "ds_z3.json": ZERO3},
    ),
    "factory on unknown machines": _line(
        "export NNODES=$SLURM_NNODES\nllamafactory-cli train train.yaml per_device_train_batch_size=4",
        {"gpus": 32, "micro": 4, "batch": 256},
        cluster=FOUR,
        files={"train.yaml": DEEP, "ds_z3.json": ZERO3},
        words=("${SLURM_NNODES} machines are not known: all 4 of the cluster",),
    ),
    "factory in words": _line(
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
    "factory dpo": _factory("stage: dpo", "stage: is dpo: trains by preferences"),
    "factory kto": _factory("stage: kto", "stage: is kto: trains by preferences"),
    "factory ppo": _factory("stage: ppo", "stage: is ppo: trains by preferences"),
    "factory rewards": _factory("stage: rm", "stage: is rm: trains by preferences"),
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
    # Axolotl
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
    "axolotl deepspeed": _line(
        "axolotl train train.yml",
        {**FULL8, "batch": 32, "framework": "deepspeed"},
        files={"train.yml": AXOLOTL + "deepspeed: ds_z3.json\n", "ds_z3.json": ZERO3},
    ),
    "axolotl by accelerate": _line(
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
    "axolotl dpo": Case(files={"train.yml": AXOLOTL + "rl: dpo\n"}, expected="rl: is dpo: trains by preferences"),
    "axolotl orpo": Case(files={"train.yml": AXOLOTL + "rl: orpo\n"}, expected="rl: is orpo: trains by preferences"),
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
    # TRL: bf16 and recomputation are on, sequences have 1,024 tokens.
    "trl sft": _line(
        "trl sft --model_name_or_path meta-llama/Llama-3.1-8B --dataset_name trl-lib/Capybara "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 8 --accelerate_config fsdp2.yaml",
        {**FULL8, "micro": 2, "batch": 128, "seq": 1024, "framework": "fsdp"},
        files={"fsdp2.yaml": FSDP2.replace("mixed_precision: bf16\n", "")},
    ),
    "trl sft by its module": _line(
        "accelerate launch --config_file fsdp2.yaml -m trl.scripts.sft --model_name_or_path meta-llama/Llama-3.1-8B "
        "--dataset_name trl-lib/Capybara --per_device_train_batch_size 1 --max_length 4096 --packing --fp16",
        {**FULL8, "precision": "fp16", "micro": 1, "batch": 8, "seq": 4096},
        files={"fsdp2.yaml": FSDP2},
    ),
    "trl sft peft": _line(f"trl sft {TRAIN} --use_peft --lora_r 16", "dtype: is float32, in which frozen weights"),
    "trl dpo": _line("trl dpo --model_name_or_path x --dataset_name y", "dpo trains by preferences"),
    "trl kto": _line(f"accelerate launch --num_processes 8 trl/scripts/kto.py {TRAIN}", "kto.py trains by preferences"),
    "trl orpo": _line(f"accelerate launch examples/scripts/orpo.py {TRAIN}", "orpo.py trains by preferences"),
    "trl grpo": _line(f"torchrun --nproc-per-node 8 run_grpo.py {TRAIN}", "run_grpo.py trains by preferences"),
    "trl rewards": _line(f"torchrun --nproc-per-node 8 -m trl.scripts.reward {TRAIN}", "reward trains by preferences"),
    "trl keys of dpo": _line(
        f"accelerate launch --num_processes 8 align.py {TRAIN} --beta 0.1 --max_prompt_length 512",
        "beta: is 0.1: trains by preferences",
    ),
    "embeddings": _line(
        "torchrun --nproc_per_node 8 -m FlagEmbedding.finetune.embedder.decoder_only.base --per_device_train_batch_size 8",
        "trains on pairs of texts",
    ),
    # Hugging Face's Trainer
    "machines of slurm": _line(
        f"torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_backend c10d train.py {TRAIN} --bf16 --fsdp full_shard",
        {"gpus": 32, "micro": 2, "batch": 64, "sharding": "zero3", "precision": "bf16", "recompute": "none"},
        cluster=FOUR,
        words=("all 4 of the cluster with 8 GPUs each",),
    ),
    "machines that the job asks for": _line(
        f"#SBATCH --nodes=2\ntorchrun --nnodes $SLURM_NNODES --nproc_per_node 8 train.py {TRAIN} --bf16 --fsdp full_shard",
        {"gpus": 16, "batch": 32},
        cluster=FOUR,
    ),
    "fsdp in a file": _line(
        f'torchrun --nproc_per_node 8 run_clm.py {TRAIN} --bf16 --fsdp "full_shard auto_wrap" --fsdp_config fsdp.json',
        FULL8,
        files={
            "fsdp.json": '{"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "activation_checkpointing": true}'
        },
    ),
    "a trainer alone": Case(
        files={
            "args.yaml": "model_name_or_path: meta-llama/Llama-3.1-8B\nper_device_train_batch_size: 2\nbf16: true\n"
        },
        expected="fsdp: is not said",
        seq_len=2048,
    ),
    "a trainer with deepspeed in it": Case(
        files={
            "args.yaml": "model_name_or_path: meta-llama/Llama-3.1-8B\nper_device_train_batch_size: 2\nbf16: true\n"
            "deepspeed:\n  zero_optimization: {stage: 2}\n  bf16: {enabled: auto}\n"
        },
        expected={"gpus": 8, "sharding": "zero2", "micro": 2, "precision": "bf16"},
        seq_len=2048,
    ),
    "a trainer's file in a launch": _line(
        "torchrun --nproc-per-node 8 train.py args.json",
        {"gpus": 8, "micro": 2, "sharding": "zero3", "recompute": "full"},
        files={
            "args.json": '{"model_name_or_path": "meta-llama/Llama-3.1-8B", "per_device_train_batch_size": 2, "bf16": true, "gradient_checkpointing": true, "fsdp": "full_shard"}'
        },
        seq_len=2048,
    ),
    "steps of accumulation are not known": _line(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --bf16 --gradient_accumulation_steps $STEPS",
        r"gradient_accumulation_steps: its value is \$\{STEPS\}.*--env STEPS",
    ),
    "more arguments are not known": _line(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --bf16 True $MORE", r"\$\{MORE\} may hold arguments"
    ),
    "python alone": _line(f"python train.py {TRAIN} --bf16", "nn.DataParallel"),
    "python alone on one gpu": _line(
        f"python train.py {TRAIN} --bf16 --gradient_checkpointing",
        {"gpus": 1, "batch": 2, "recompute": "full"},
        cluster="1x1xH100-SXM",
    ),
    "python alone on the one that it sees": _line(
        f"CUDA_VISIBLE_DEVICES=3 python train.py {TRAIN} --bf16 --use_flash_attn True", {"gpus": 1, "batch": 2}
    ),
    "verl": _line(
        "torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.train_batch_size=256 model.partial_pretrain=x",
        "verl.trainer.fsdp_sft_trainer is of a trainer for reinforcement learning",
    ),
    "nothing is said of bf16": _line(
        f"torchrun --nproc_per_node 8 train.py {TRAIN}",
        {"precision": "fp32"},
        words=("neither bf16 nor fp16 is said: fp32 is priced",),
    ),
    "galore": _line(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --optim galore_adamw --optim_args rank=64,scale=0.1 "
        "--optim_target_modules attn mlp --bf16",
        {"optimizer": "galore", "rank": 64, "sharding": "none"},
    ),
    "apollo of the usual rank, layer by layer": _line(
        f"torchrun --nproc_per_node 1 train.py {TRAIN} --optim apollo_adamw_layerwise --optim_target_modules all-linear",
        {"optimizer": "apollo", "rank": None},
        cluster="1x1xH100-SXM",
    ),
    "galore under FSDP": _line(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --optim galore_adamw --fsdp full_shard",
        "galore projects whole matrices",
    ),
    "galore of no rank": _line(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --optim galore_adamw --optim_args rank=all",
        "optim_args: has the rank all",
    ),
    "galore in 8 bits": _line(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --optim galore_adamw_8bit", "galore_adamw_8bit keeps other"
    ),
    "sgd": _line(f"torchrun --nproc_per_node 8 train.py {TRAIN} --optim sgd --bf16", {"optimizer": "sgd"}),
    "batch while it runs": _line(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --auto_find_batch_size",
        "auto_find_batch_size: the batch is found",
    ),
    "kernels are named": _line(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --bf16 --use_liger_kernel --torch_dtype bfloat16 --my_own_flag 3",
        {"precision": "bf16"},
        words=("use_liger_kernel (Liger's kernels of rope", "my_own_flag (not known here)"),
    ),
    "eager attention": _line(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --bf16 --attn_implementation eager", {"flash": False}
    ),
    "two trainings": _line(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --bf16\ntorchrun --nproc_per_node 8 train.py {TRAIN} --fp16",
        "starts several trainings that differ",
    ),
    "an adapter by its switch": _line(
        f"torchrun --nproc-per-node 8 train.py {TRAIN} --lora_enable", "lora_r: is missing"
    ),
    # Accelerate
    "accelerate fsdp": _line(
        f"accelerate launch --config_file fsdp2.yaml train.py {TRAIN} --gradient_checkpointing true",
        {**FULL8, "micro": 2, "batch": 16},
        files={"fsdp2.yaml": FSDP2},
    ),
    "accelerate keeps weights": _line(
        f"accelerate launch --config_file fsdp2.yaml train.py {TRAIN}",
        {"sharding": "zero2", "recompute": "none"},
        files={"fsdp2.yaml": FSDP2.replace("reshard_after_forward: true", "reshard_after_forward: false")},
    ),
    "accelerate machines": _line(
        "accelerate launch --config_file fsdp2.yaml --num_machines $SLURM_NNODES --num_processes $((SLURM_NNODES * 8)) "
        f"--machine_rank $SLURM_NODEID --main_process_ip $HEAD train.py {TRAIN}",
        {"gpus": 32, "sharding": "zero3"},
        cluster=FOUR,
        files={"fsdp2.yaml": FSDP2},
        words=("those of the cluster are assumed (32)",),
    ),
    "accelerate without a configuration": _line(
        f"accelerate launch --num_processes 8 train.py {TRAIN} --bf16",
        {"gpus": 8, "sharding": "none"},
        words=("no configuration of Accelerate is named",),
    ),
    "accelerate megatron": _line(
        f"accelerate launch --config_file m.yaml train.py {TRAIN}",
        "distributed_type: is MEGATRON_LM, which is not described",
        files={"m.yaml": "distributed_type: MEGATRON_LM\nnum_processes: 8\n"},
    ),
    "accelerate slip": _line(
        f"accelerate launch --config_file f.yaml train.py {TRAIN}",
        "fsdp_shardng_strategy: is no key of this trainer .did you mean fsdp_sharding_strategy",
        files={"f.yaml": "distributed_type: FSDP\nfsdp_config: {fsdp_shardng_strategy: SHARD_GRAD_OP}\n"},
    ),
    # DeepSpeed
    "deepspeed alone": Case(
        files={
            "ds.json": '{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "steps_per_print": 10, '
            '"gradient_clipping": 1.0, "zero_optimization": {"stage": 2, "allgather_bucket_size": 5e8}, '
            '"bf16": {"enabled": true}, "wall_clock_breakdown": false}'
        },
        expected={"gpus": 16, "micro": 4, "batch": 256, "sharding": "zero2", "precision": "bf16"},
        cluster=TWO,
        model=LLAMA,
        seq_len=4096,
    ),
    "deepspeed's hosts": _line(
        f"deepspeed --hostfile hosts --num_gpus 8 train.py {TRAIN} --deepspeed ds_z3.json --bf16",
        {"gpus": 32, "sharding": "zero3"},
        cluster=FOUR,
        files={"ds_z3.json": ZERO3},
        words=("the hostfile's machines are not known",),
    ),
    "deepspeed's older offload": _line(
        f"deepspeed --num_gpus 8 train.py {TRAIN} --deepspeed ds.json --bf16",
        {"sharding": "zero2", "offload": 1.0},
        files={"ds.json": '{"zero_optimization": {"stage": 2, "cpu_offload": true}, "bf16": {"enabled": true}}'},
    ),
    "deepspeed zero++": _line(
        f"deepspeed --num_gpus 8 train.py {TRAIN} --deepspeed ds.json --bf16",
        r"zero_hpz_partition_size: is 8: hierarchical partitions \(ZeRO\+\+\)",
        files={"ds.json": '{"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}'},
    ),
    "deepspeed to disks": _line(
        f"deepspeed --num_gpus 8 train.py {TRAIN} --deepspeed ds.json --bf16",
        "offload_optimizer.device: is nvme, which is not described",
        files={"ds.json": '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}'},
    ),
    "deepspeed one bit": _line(
        f"deepspeed --num_gpus 8 train.py {TRAIN} --deepspeed ds.json",
        "onebitadam keeps other state",
        files={"ds.json": '{"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-4}}, "fp16": {"enabled": true}}'},
    ),
    # torchtitan
    "torchtitan shards on two GPUs": Case(
        files={"t.toml": TITAN + "[parallelism]\ndata_parallel_shard_degree = 2\n"},
        expected={"gpus": 2, "batch": 2, "sharding": "zero3", "recompute": "full", "layers": 16},
    ),
    "torchtitan shards that make no run": _line(
        "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file t.toml",
        "data_parallel_shard_degree: is 2, which with the other degrees makes 2 of 8 GPUs",
        files={"t.toml": TITAN + "[parallelism]\ndata_parallel_shard_degree = 2\n"},
    ),
    "torchtitan experts": Case(
        files={
            "t.toml": TITAN.replace('"llama3"', '"qwen3"').replace('"8B"', '"30B-A3B"')
            + "[parallelism]\ndata_parallel_shard_degree = 8\nexpert_parallel_degree = 4\n"
        },
        expected={"gpus": 8, "ep": 4, "sharding": "zero3"},
    ),
    "torchtitan of eight bits": Case(
        files={
            "t.toml": TITAN.replace('"8B"', '"70B"\nconverters = ["float8"]')
            + "[parallelism]\ntensor_parallel_degree = 8\nenable_async_tensor_parallel = true\n[activation_checkpoint]\n"
            'mode = "full"\n[validation]\nenable = true\nseq_len = 512\nlocal_batch_size = 4\n'
        },
        expected={"gpus": 32, "tp": 8, "micro": 1, "batch": 4, "seq": 8192, "precision": "fp8", "recompute": "full"},
        cluster=FOUR,
    ),
    "torchtitan offloads": Case(
        files={"t.toml": TITAN.replace("steps = 1000", "steps = 1000\nenable_cpu_offload = true")},
        expected={"sharding": "zero3", "offload": 1.0},
    ),
    "torchtitan offloads what is whole": Case(
        files={
            "t.toml": TITAN.replace("steps = 1000", "steps = 1000\nenable_cpu_offload = true")
            + "[parallelism]\ndata_parallel_replicate_degree = 8\ndata_parallel_shard_degree = 1\n"
        },
        expected="enable_cpu_offload: offload of weights that are not sharded",
    ),
    "torchtitan updates in backward": Case(
        files={"t.toml": TITAN.replace("lr = 3e-4", "lr = 3e-4\nearly_step_in_backward = true")},
        expected="early_step_in_backward: the update runs within",
    ),
    "torchtitan hybrid": Case(
        files={"t.toml": TITAN + "[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n"},
        expected="hybrid sharding is not described",
    ),
    # Megatron-LM, and what is made of it
    "megatron on unknown machines": _line(
        f"torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 --node-rank $SLURM_NODEID {MEGATRON} --bf16",
        {"gpus": 32, "tp": 4, "micro": 1, "batch": 128, "sharding": "zero1", "precision": "bf16"},
        cluster=FOUR,
        words=("${SLURM_NNODES} machines are not known: all 4 of the cluster",),
    ),
    "megatron of fp32": _line(
        f"torchrun --nproc-per-node 8 {MEGATRON}",
        {"gpus": 8, "precision": "fp32"},
        words=("neither --bf16 nor --fp16 is said",),
    ),
    "megatron slip": _line(
        f"torchrun --nproc-per-node 8 {MEGATRON} --pipeline-model-paralel-size 2 --bf16",
        "--pipeline-model-paralel-size: is no argument of Megatron-LM .did you mean --pipeline-model-parallel-size",
    ),
    "bridge": Case(
        files={"recipe.py": RECIPE.format("")},
        expected={"gpus": 8, "tp": 2, "batch": 64, "seq": 8192, "sharding": "zero1", "precision": "bf16"},
    ),
    "bridge adapters": Case(
        files={"recipe.py": RECIPE.format("    cfg.peft = LoRA(dim=8)")}, expected="peft.dim: is 8: trains adapters"
    ),
    "bridge adapters without arguments": Case(
        files={"recipe.py": RECIPE.format("    cfg.peft = LoRA()")}, expected="peft: is computed"
    ),
    "bridge slip": Case(
        files={"recipe.py": RECIPE.format("    cfg.model.pipeline_model_paralel_size = 2")},
        expected="pipeline_model_paralel_size: is no key of this trainer",
    ),
    "nanotron": Case(
        files={
            "n.yaml": "general: {run: x}\nmodel: {dtype: bfloat16}\nparallelism: {dp: 8, tp: 1}\ntokens: {micro_batch_size: 1}\n"
        },
        expected="is a configuration of nanotron, which is not read",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_launch_file_is_read_right_or_refused_by_name(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    for file, text in case.files.items():
        (tmp_path / file).write_text(text)
    options: dict[str, Any] = {
        "cluster": load_cluster(case.cluster),
        "model": load_model(case.model) if case.model else None,
        "seq_len": case.seq_len,
        "arguments": case.arguments,
    }
    path = tmp_path / next(iter(case.files))
    if isinstance(case.expected, str):
        with pytest.raises(SpecError, match=case.expected) as caught:
            plan_from_launch(path, **options)
        assert all(problem.hint for problem in caught.value.problems)
        return
    reading = plan_from_launch(path, **options)
    found = shape(reading.plan)
    assert {key: found[key] for key in case.expected} == case.expected
    screen = " | ".join((*reading.notes, *reading.uncounted))
    assert all(word in screen for word in case.words), screen
