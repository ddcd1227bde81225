"""Launch files of Hugging Face's trainers: TRL, `Trainer`, Accelerate and DeepSpeed."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.importers.choices import OF_PREFERENCES
from tests.importers.launch_cases import FOUR, FULL8, LLAMA, TWO, ZERO3, Case, check, launch

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
CASES = {
    # TRL: bf16 and recomputation are on, sequences have 1,024 tokens.
    "trl sft": launch(
        "trl sft --model_name_or_path meta-llama/Llama-3.1-8B --dataset_name trl-lib/Capybara "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 8 --accelerate_config fsdp2.yaml",
        {**FULL8, "micro": 2, "batch": 128, "seq": 1024, "framework": "fsdp"},
        files={"fsdp2.yaml": FSDP2.replace("mixed_precision: bf16\n", "")},
    ),
    "trl sft by its module": launch(
        "accelerate launch --config_file fsdp2.yaml -m trl.scripts.sft --model_name_or_path meta-llama/Llama-3.1-8B "
        "--dataset_name trl-lib/Capybara --per_device_train_batch_size 1 --max_length 4096 --packing --fp16",
        {**FULL8, "precision": "fp16", "micro": 1, "batch": 8, "seq": 4096},
        files={"fsdp2.yaml": FSDP2},
    ),
    "trl sft peft": launch(f"trl sft {TRAIN} --use_peft --lora_r 16", "dtype: is float32, in which frozen weights"),
    "trl dpo": launch(
        "trl dpo --model_name_or_path meta-llama/Llama-3.1-8B --dataset_name y --per_device_train_batch_size 2 "
        "--accelerate_config fsdp2.yaml --beta 0.1",
        {**FULL8, "micro": 2, "batch": 16, "seq": 1024, "preference": "dpo", "loss": "tiled"},
        files={"fsdp2.yaml": FSDP2},
    ),
    "trl kto": launch(
        f"accelerate launch --config_file fsdp2.yaml trl/scripts/kto.py {TRAIN} --precompute_ref_log_probs true",
        {**FULL8, "preference": "kto:precomputed", "loss": "tiled"},
        files={"fsdp2.yaml": FSDP2},
    ),
    "trl orpo": launch(
        f"accelerate launch --config_file fsdp2.yaml examples/scripts/orpo.py {TRAIN}",
        {**FULL8, "preference": "orpo", "loss": None},
        files={"fsdp2.yaml": FSDP2},
    ),
    "trl simpo by its module": launch(
        f"accelerate launch --config_file fsdp2.yaml -m scripts.run_simpo {TRAIN} --simpo_gamma 0.5 --loss_type simpo",
        {**FULL8, "preference": "cpo", "loss": None},
        files={"fsdp2.yaml": FSDP2},
    ),
    "trl grpo": launch(f"torchrun --nproc-per-node 8 run_grpo.py {TRAIN}", "run_grpo.py trains by rewards"),
    "trl online dpo": launch(f"torchrun --nproc-per-node 8 online_dpo.py {TRAIN}", "online_dpo.py trains by rewards"),
    "trl online dpo by its example": launch(
        f"torchrun --nproc-per-node 8 examples/scripts/dpo_online.py {TRAIN}", "dpo_online.py trains by rewards"
    ),
    "trl kto one sample at a time": launch(
        f"accelerate launch --config_file fsdp2.yaml kto.py {TRAIN.replace('size 2', 'size 1')}",
        "micro_batch: gives a GPU 1 at a time, and kto",
        files={"fsdp2.yaml": FSDP2},
    ),
    "trl dpo by the other fsdp": launch(
        f"accelerate launch --config_file fsdp.yaml dpo.py {TRAIN}",
        {**FULL8, "preference": "dpo"},
        files={
            "fsdp.yaml": FSDP2.replace("version: 2", "version: 1").replace(
                "fsdp_reshard_after_forward: true", "fsdp_sharding_strategy: FULL_SHARD"
            )
        },
        words=("FSDP 2 gathers all weights of a reference at once",),
    ),
    "trl rewards": launch(
        f"accelerate launch --config_file fsdp2.yaml -m trl.scripts.reward {TRAIN} --center_rewards_coefficient 0.01",
        {**FULL8, "preference": "reward", "loss": None},
        files={"fsdp2.yaml": FSDP2},
    ),
    "trl rewards by its example": launch(
        f"accelerate launch --config_file fsdp2.yaml examples/scripts/reward_modeling.py {TRAIN} --use_peft "
        "--lora_task_type SEQ_CLS --dtype bfloat16 --lora_target_modules all-linear",
        {"preference": "reward", "sharding": "zero3"},
        files={"fsdp2.yaml": FSDP2},
    ),
    "trl keys of rewards": launch(
        f"accelerate launch --config_file fsdp2.yaml align.py {TRAIN} --center_rewards_coefficient 0.01",
        "center_rewards_coefficient: is 0.01: goes with a loss over preferences or rewards",
        files={"fsdp2.yaml": FSDP2},
    ),
    "trl keys of dpo": launch(
        f"accelerate launch --num_processes 8 align.py {TRAIN} --beta 0.1 --max_prompt_length 512",
        "beta: is 0.1: goes with a loss over preferences or rewards, and nothing says which",
    ),
    "trl keys of dpo, which the user names": launch(
        f"accelerate launch --config_file fsdp2.yaml align.py {TRAIN} --beta 0.1 --max_prompt_length 512",
        {**FULL8, "preference": "dpo", "loss": "tiled"},
        files={"fsdp2.yaml": FSDP2},
        preference="ipo",
    ),
    "trl reference of another model": launch(
        f"accelerate launch --config_file fsdp2.yaml dpo.py {TRAIN} --ref_model_name_or_path x/y",
        "ref_model_name_or_path: is x/y: another model",
        files={"fsdp2.yaml": FSDP2},
    ),
    "embeddings": launch(
        "torchrun --nproc_per_node 8 -m FlagEmbedding.finetune.embedder.decoder_only.base --per_device_train_batch_size 8",
        "trains on pairs of texts",
    ),
    # Hugging Face's Trainer
    "machines of slurm": launch(
        f"torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_backend c10d train.py {TRAIN} --bf16 --fsdp full_shard",
        {"gpus": 32, "micro": 2, "batch": 64, "sharding": "zero3", "precision": "bf16", "recompute": "none"},
        cluster=FOUR,
        words=("all 4 of the cluster with 8 GPUs each",),
    ),
    "machines that the job asks for": launch(
        f"#SBATCH --nodes=2\ntorchrun --nnodes $SLURM_NNODES --nproc_per_node 8 train.py {TRAIN} --bf16 --fsdp full_shard",
        {"gpus": 16, "batch": 32},
        cluster=FOUR,
    ),
    "fsdp in a file": launch(
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
    "a trainer's file in a launch": launch(
        "torchrun --nproc-per-node 8 train.py args.json",
        {"gpus": 8, "micro": 2, "sharding": "zero3", "recompute": "full"},
        files={
            "args.json": '{"model_name_or_path": "meta-llama/Llama-3.1-8B", "per_device_train_batch_size": 2, "bf16": true, "gradient_checkpointing": true, "fsdp": "full_shard"}'
        },
        seq_len=2048,
    ),
    "steps of accumulation are not known": launch(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --bf16 --gradient_accumulation_steps $STEPS",
        r"gradient_accumulation_steps: its value is \$\{STEPS\}.*--env STEPS",
    ),
    "more arguments are not known": launch(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --bf16 True $MORE", r"\$\{MORE\} may hold arguments"
    ),
    "python alone": launch(f"python train.py {TRAIN} --bf16", "nn.DataParallel"),
    "python alone on one gpu": launch(
        f"python train.py {TRAIN} --bf16 --gradient_checkpointing",
        {"gpus": 1, "batch": 2, "recompute": "full"},
        cluster="1x1xH100-SXM",
    ),
    "python alone on the one that it sees": launch(
        f"CUDA_VISIBLE_DEVICES=3 python train.py {TRAIN} --bf16 --use_flash_attn True", {"gpus": 1, "batch": 2}
    ),
    "verl": launch(
        "torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.train_batch_size=256 model.partial_pretrain=x",
        "verl.trainer.fsdp_sft_trainer is of a trainer for reinforcement learning",
    ),
    "nothing is said of bf16": launch(
        f"torchrun --nproc_per_node 8 train.py {TRAIN}",
        {"precision": "fp32"},
        words=("neither bf16 nor fp16 is said: fp32 is priced",),
    ),
    "galore": launch(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --optim galore_adamw --optim_args rank=64,scale=0.1 "
        "--optim_target_modules attn mlp --bf16",
        {"optimizer": "galore", "rank": 64, "sharding": "none"},
    ),
    "apollo of the usual rank, layer by layer": launch(
        f"torchrun --nproc_per_node 1 train.py {TRAIN} --optim apollo_adamw_layerwise --optim_target_modules all-linear",
        {"optimizer": "apollo", "rank": None},
        cluster="1x1xH100-SXM",
    ),
    "galore under FSDP": launch(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --optim galore_adamw --fsdp full_shard",
        "galore projects whole matrices",
    ),
    "galore of no rank": launch(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --optim galore_adamw --optim_args rank=all",
        "optim_args: has the rank all",
    ),
    "galore in 8 bits": launch(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --optim galore_adamw_8bit", "galore_adamw_8bit keeps other"
    ),
    "sgd": launch(f"torchrun --nproc_per_node 8 train.py {TRAIN} --optim sgd --bf16", {"optimizer": "plain_sgd"}),
    "sgd with momentum": launch(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --optim sgd --optim_args momentum=0.9 --bf16",
        {"optimizer": "sgd"},
    ),
    "sgd with momentum of 0": launch(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --optim sgd --optim_args momentum=0.0 --bf16",
        {"optimizer": "plain_sgd"},
    ),
    "batch while it runs": launch(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --auto_find_batch_size",
        "auto_find_batch_size: the batch is found",
    ),
    "kernels are named": launch(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --bf16 --use_liger_kernel --torch_dtype bfloat16 --my_own_flag 3",
        {"precision": "bf16"},
        words=("use_liger_kernel (Liger's kernels of rope", "my_own_flag (not known here)"),
    ),
    "eager attention": launch(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --bf16 --attn_implementation eager", {"flash": False}
    ),
    "two trainings": launch(
        f"torchrun --nproc_per_node 8 train.py {TRAIN} --bf16\ntorchrun --nproc_per_node 8 train.py {TRAIN} --fp16",
        "starts several trainings that differ",
    ),
    "an adapter by its switch": launch(
        f"torchrun --nproc-per-node 8 train.py {TRAIN} --lora_enable", "lora_r: is missing"
    ),
    # Accelerate
    "accelerate fsdp": launch(
        f"accelerate launch --config_file fsdp2.yaml train.py {TRAIN} --gradient_checkpointing true",
        {**FULL8, "micro": 2, "batch": 16},
        files={"fsdp2.yaml": FSDP2},
    ),
    "accelerate keeps weights": launch(
        f"accelerate launch --config_file fsdp2.yaml train.py {TRAIN}",
        {"sharding": "zero2", "recompute": "none"},
        files={"fsdp2.yaml": FSDP2.replace("reshard_after_forward: true", "reshard_after_forward: false")},
    ),
    "accelerate machines": launch(
        "accelerate launch --config_file fsdp2.yaml --num_machines $SLURM_NNODES --num_processes $((SLURM_NNODES * 8)) "
        f"--machine_rank $SLURM_NODEID --main_process_ip $HEAD train.py {TRAIN}",
        {"gpus": 32, "sharding": "zero3"},
        cluster=FOUR,
        files={"fsdp2.yaml": FSDP2},
        words=("those of the cluster are assumed (32)",),
    ),
    "accelerate without a configuration": launch(
        f"accelerate launch --num_processes 8 train.py {TRAIN} --bf16",
        {"gpus": 8, "sharding": "none"},
        words=("no configuration of Accelerate is named",),
    ),
    "accelerate megatron": launch(
        f"accelerate launch --config_file m.yaml train.py {TRAIN}",
        "distributed_type: is MEGATRON_LM, which is not described",
        files={"m.yaml": "distributed_type: MEGATRON_LM\nnum_processes: 8\n"},
    ),
    "accelerate slip": launch(
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
    "deepspeed's hosts": launch(
        f"deepspeed --hostfile hosts --num_gpus 8 train.py {TRAIN} --deepspeed ds_z3.json --bf16",
        {"gpus": 32, "sharding": "zero3"},
        cluster=FOUR,
        files={"ds_z3.json": ZERO3},
        words=("the hostfile's machines are not known",),
    ),
    "deepspeed's older offload": launch(
        f"deepspeed --num_gpus 8 train.py {TRAIN} --deepspeed ds.json --bf16",
        {"sharding": "zero2", "offload": 1.0},
        files={"ds.json": '{"zero_optimization": {"stage": 2, "cpu_offload": true}, "bf16": {"enabled": true}}'},
    ),
    "deepspeed zero++": launch(
        f"deepspeed --num_gpus 8 train.py {TRAIN} --deepspeed ds.json --bf16",
        r"zero_hpz_partition_size: is 8: hierarchical partitions \(ZeRO\+\+\)",
        files={"ds.json": '{"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}'},
    ),
    "deepspeed to disks": launch(
        f"deepspeed --num_gpus 8 train.py {TRAIN} --deepspeed ds.json --bf16",
        "offload_optimizer.device: is nvme, which is not described",
        files={"ds.json": '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}'},
    ),
    "deepspeed one bit": launch(
        f"deepspeed --num_gpus 8 train.py {TRAIN} --deepspeed ds.json",
        "onebitadam keeps other state",
        files={"ds.json": '{"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-4}}, "fp16": {"enabled": true}}'},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_files_of_trainers_of_transformers_are_read_right_or_refused_by_name(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)


@pytest.mark.parametrize(
    ("script", "loss_type"),
    [
        *(
            (script, kind)
            for script in ("align.py", "sft.py")
            for kind in ("sigmoid", "ipo", "kto", "simpo", "[hinge, sft]")
        ),
        ("kto.py", "sigmoid"),
        ("kto.py", "apo_zero_unpaired"),
        ("cpo.py", "bco_pair"),
        ("orpo.py", "sigmoid"),
        ("dpo.py", "nll"),
    ],
)
def test_types_of_a_loss_are_those_of_the_loss(script: str, loss_type: str, tmp_path: Path) -> None:
    """A type of another loss says that another one is trained by, so it is never left out."""
    arguments = TRAIN.replace("--", "\n").replace("\n", "", 1).replace(" ", ": ").replace(": \n", "\n")
    text = f"{arguments}\nloss_type: {loss_type}\nbf16: true\n"
    line = f"accelerate launch --config_file fsdp2.yaml {script} --config train.yaml"
    check(launch(line, "loss_type: is ", files={"fsdp2.yaml": FSDP2, "train.yaml": text}), tmp_path)


@pytest.mark.parametrize("key", OF_PREFERENCES)
def test_keys_of_preferences_alone_are_never_left_out(key: str, tmp_path: Path) -> None:
    line = f"accelerate launch --config_file fsdp2.yaml sft.py {TRAIN} --{key} 1"
    check(launch(line, f"{key}: is 1", files={"fsdp2.yaml": FSDP2}), tmp_path)


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("accelerate launch --config_file fsdp2.yaml dpo.py", "kto"),
        ("accelerate launch --config_file fsdp2.yaml orpo.py", "dpo"),
        ("accelerate launch --config_file fsdp2.yaml dpo.py", "dpo:precomputed"),
        ("accelerate launch --config_file fsdp2.yaml kto.py --precompute_ref_log_probs true", "kto"),
        ("llamafactory-cli train --stage sft --finetuning_type full --template x", "dpo"),
    ],
)
def test_a_launch_that_trains_by_another_loss_than_is_asked_for_is_refused(
    line: str, asked: str, tmp_path: Path
) -> None:
    case = launch(f"{line} {TRAIN}", "--preference: is ", files={"fsdp2.yaml": FSDP2}, preference=asked)
    check(case, tmp_path)
