"""Launch files of torchtitan, of Megatron-LM and what is made of it, and of nanotron, which is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.importers.launch_cases import FOUR, Case, check, launch

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
CASES = {
    # torchtitan
    "torchtitan shards on two GPUs": Case(
        files={"t.toml": TITAN + "[parallelism]\ndata_parallel_shard_degree = 2\n"},
        expected={"gpus": 2, "batch": 2, "sharding": "zero3", "recompute": "full", "layers": 16},
    ),
    "torchtitan shards that make no run": launch(
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
    "megatron on unknown machines": launch(
        f"torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 --node-rank $SLURM_NODEID {MEGATRON} --bf16",
        {"gpus": 32, "tp": 4, "micro": 1, "batch": 128, "sharding": "zero1", "precision": "bf16"},
        cluster=FOUR,
        words=("${SLURM_NNODES} machines are not known: all 4 of the cluster",),
    ),
    "megatron of fp32": launch(
        f"torchrun --nproc-per-node 8 {MEGATRON}",
        {"gpus": 8, "precision": "fp32"},
        words=("neither --bf16 nor --fp16 is said",),
    ),
    "megatron slip": launch(
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
def test_files_of_pretraining_are_read_right_or_refused_by_name(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)
