"""Launches of Hugging Face Trainers, DeepSpeed and Accelerate as people write them for fine-tuning."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright import SpecError, check
from shardwright.exporters.deepspeed import config
from shardwright.importers.launch import plan_from_launch
from shardwright.importers.megatron.read import Reading
from shardwright.rehearsal.document import memory_of
from tests.golden.plans import cluster_of

TRAINER = (
    "--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 4 --gradient_accumulation_steps 8 "
    "--model_max_length 2048"
)
FILES = {
    "auto.json": '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}, "train_batch_size": "auto"}',
    "older.json": '{"bfloat16": {"enabled": true}, "zero_optimization": {"stage": 2}}',
    "fsdp.yaml": "distributed_type: FSDP\nmixed_precision: BF16\nnum_processes: 8\n",
    "plain.yaml": "distributed_type: FSDP\nmixed_precision: 'no'\nnum_processes: 8\n",
    "four.yaml": "distributed_type: FSDP\nnum_processes: 4\n",
    "ds.yaml": "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n",
    "ds-auto.yaml": (
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n"
        "deepspeed_config:\n  deepspeed_config_file: auto.json\n"
    ),
}


def read(line: str, folder: Path) -> Reading:
    """Read a script of one line, with the files beside it."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "run.sh").write_text(f"{line}\n")
    return plan_from_launch(folder / "run.sh", cluster=cluster_of(1))


# The launch; GPUs, sharding, precision and framework of its plan.
LAUNCHES = {
    'torchrun --nproc_per_node=4 train.py {} --bf16 True --fsdp "full_shard auto_wrap"': (4, "zero3", "bf16", "fsdp"),
    'torchrun --nproc_per_node=4 train.py {} --fp16 --fsdp "shard_grad_op"': (4, "zero2", "fp16", "fsdp"),
    "torchrun --nproc_per_node=2 train.py {} --bf16": (2, "none", "bf16", "fsdp"),
    "deepspeed --include=localhost:0,1,2,3 train.py --deepspeed auto.json {} --bf16": (4, "zero3", "bf16", "deepspeed"),
    "deepspeed -i a:0,1@b:0,1 train.py --deepspeed auto.json {} --bf16": (4, "zero3", "bf16", "deepspeed"),
    "CUDA_VISIBLE_DEVICES=0,3 deepspeed train.py --deepspeed auto.json {} --bf16": (2, "zero3", "bf16", "deepspeed"),
    "deepspeed --num_gpus 2 train.py --deepspeed --deepspeed_config older.json {}": (2, "zero2", "bf16", "deepspeed"),
    "export CUDA_VISIBLE_DEVICES=1,4\ntorchrun --nproc_per_node=gpu train.py {}": (2, "none", "fp32", "fsdp"),
    "accelerate launch --config_file fsdp.yaml train.py {}": (8, "zero3", "bf16", "fsdp"),
    "accelerate launch --config_file plain.yaml train.py {} --bf16": (8, "zero3", "bf16", "fsdp"),
    "accelerate launch --config_file ds.yaml train.py {}": (8, "zero2", "bf16", "deepspeed"),
    "accelerate launch --config_file ds-auto.yaml train.py {}": (8, "zero3", "bf16", "deepspeed"),
}


EACH = """ --accelerator_config '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}'"""
SYNCED = {
    'torchrun --nproc_per_node=4 train.py {} --bf16 --fsdp "full_shard auto_wrap"': "last",
    'torchrun --nproc_per_node=4 train.py {} --bf16 --fsdp "shard_grad_op"': "last",
    "torchrun --nproc_per_node=4 train.py {} --bf16 --fsdp full_shard" + EACH: None,
    "torchrun --nproc_per_node=4 train.py {} --bf16 --fsdp full_shard --gradient_accumulation_steps 1": None,
    "torchrun --nproc_per_node=4 train.py {} --bf16": None,
    "deepspeed --num_gpus 4 train.py --deepspeed older.json {}": None,
}


@pytest.mark.parametrize("line", SYNCED)
def test_accelerate_keeps_whole_gradients_until_the_last_micro_batch(line: str, tmp_path: Path) -> None:
    """Of FSDP, unless it is told otherwise: they take more memory than sharded ones, and are summed once."""
    plan = read(line.replace("{}", TRAINER, 1), tmp_path).plan
    assert plan.job.options.gradient_sync == SYNCED[line]
    if plan.optimizer.sharding == "zero3" and plan.job.options.gradient_sync == "last":
        job = replace(plan.job, options=replace(plan.job.options, gradient_sync=None))
        kept, summed = (memory_of(each)[0][0] for each in (plan, replace(plan, job=job)))
        more = kept.gradients_bytes - summed.gradients_bytes
        assert more == pytest.approx(plan.model.parameters * (2.0 - 4.0 / 4), rel=0.07)  # less a layer on its way


@pytest.mark.parametrize("line", LAUNCHES)
def test_launches_of_trainers(line: str, tmp_path: Path) -> None:
    plan = read(line.format(TRAINER), tmp_path).plan
    found = (plan.gpus, plan.optimizer.sharding, plan.job.precision, plan.job.framework)
    assert found == LAUNCHES[line]
    assert (plan.micro_batch, plan.job.global_batch, plan.job.seq_len) == (4, 32 * plan.gpus, 2048)
    assert plan.model.name == "llama-2-7b"


def test_arguments_of_a_trainer_in_a_file(tmp_path: Path) -> None:
    """As LLaMA-Factory has them in YAML, and as `export` writes them for Accelerate and DeepSpeed."""
    (tmp_path / "auto.json").write_text(FILES["auto.json"])
    told = (
        "model_name_or_path: meta-llama/Llama-2-7b-hf\nper_device_train_batch_size: 1\ncutoff_len: 2048\nbf16: true\n"
        "finetuning_type: full\n"
    )
    for words, expected in (("deepspeed: auto.json\n", "deepspeed"), ("fsdp: full_shard\n", "fsdp")):
        (tmp_path / "train.yaml").write_text(told + words)
        plan = plan_from_launch(tmp_path / "train.yaml", cluster=cluster_of(1)).plan
        assert (plan.job.framework, plan.optimizer.sharding, plan.job.precision) == (expected, "zero3", "bf16")


@pytest.mark.parametrize(
    ("said", "frozen"),
    [
        ("", ("vision", "projector")),
        ("freeze_vision_tower: false\nfreeze_multi_modal_projector: false\n", None),
        ("freeze_language_model: true\nfreeze_multi_modal_projector: false\n", ("vision", "language")),
    ],
)
def test_parts_that_llama_factory_freezes(said: str, frozen: tuple[str, ...] | None, tmp_path: Path) -> None:
    """Of a model that sees images, or hears; a text model has none of them."""
    told = "per_device_train_batch_size: 1\nbf16: true\nfinetuning_type: full\nfsdp: full_shard\n" + said
    heard = None if frozen is None else ("audio", *frozen[1:])
    names = {"Qwen/Qwen2.5-VL-7B-Instruct": frozen, "Qwen/Qwen2-Audio-7B": heard, "meta-llama/Llama-2-7b-hf": None}
    for name, expected in names.items():
        (tmp_path / "train.yaml").write_text(f"model_name_or_path: {name}\n{told}")
        assert plan_from_launch(tmp_path / "train.yaml", cluster=cluster_of(1)).plan.job.freeze == expected


def test_what_a_task_of_skypilot_runs(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(
        "num_nodes: 2\nresources:\n  accelerators: {H100: 8}\nenvs:\n  BATCH: 4\nrun: |\n"
        "  torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE train.py --bf16 \\\n"
        f"    {TRAINER} --per_device_train_batch_size $BATCH --fsdp full_shard\n"
    )
    plan = plan_from_launch(tmp_path / "task.yaml", cluster=cluster_of(2)).plan
    assert (plan.gpus, plan.micro_batch, plan.optimizer.sharding) == (16, 4, "zero3")


def test_it_is_told_where_all_gpus_are_assumed(tmp_path: Path) -> None:
    reading = read(f"deepspeed train.py --deepspeed auto.json {TRAINER} --optim adamw_anyprecision", tmp_path)
    assert "the text does not say how many GPUs run; those of the cluster are assumed (8)" in reading.notes
    assert reading.uncounted == ("optimizer adamw_anyprecision (priced as Adam)",)


def test_a_number_of_processes_that_is_not_known_is_not_that_of_a_file(tmp_path: Path) -> None:
    reading = read(f"accelerate launch --config_file four.yaml --num_processes $N train.py {TRAINER}", tmp_path)
    assert reading.plan.gpus == 8 and any("does not say how many GPUs run" in note for note in reading.notes)


def test_torchrun_starts_a_process_on_each_device_only_where_it_is_told(tmp_path: Path) -> None:
    assert read(f"CUDA_VISIBLE_DEVICES=0,1 torchrun train.py {TRAINER}", tmp_path).plan.gpus == 1
    assert read(f"CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node gpu train.py {TRAINER}", tmp_path).plan.gpus == 2
    assert read(f"torchrun --nproc-per-node gpu train.py {TRAINER}", tmp_path).plan.gpus == 8


def test_what_megatron_lm_is_told_is_its_own_with_deepspeed(tmp_path: Path) -> None:
    """Megatron-DeepSpeed: degrees may be left out, and its model is in its arguments."""
    line = (
        "deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
        "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 --bf16 "
        "--deepspeed --deepspeed_config older.json"
    )
    plan = read(line, tmp_path).plan
    assert (plan.job.framework, len(plan.model.layers), plan.micro_batch) == ("megatron", 32, 2)


@pytest.mark.parametrize("optimizer_too", [False, True])
def test_weights_in_host_memory_are_read_and_written(optimizer_too: bool, tmp_path: Path) -> None:
    places = {"offload_param": {"device": "cpu"}} | ({"offload_optimizer": {"device": "cpu"}} if optimizer_too else {})
    (tmp_path / "away.json").write_text(json.dumps({"zero_optimization": {"stage": 3, **places}}))
    plan = read(f"{DS} away.json {TRAINER}", tmp_path).plan
    assert (plan.job.options.weight_offload, plan.optimizer.offload) == ("host", float(optimizer_too))
    zero = config(plan)["zero_optimization"]
    assert isinstance(zero, dict) and zero["offload_param"] == {"device": "cpu", "pin_memory": True}
    flat = replace(plan, optimizer=replace(plan.optimizer, sharding="zero2"))
    assert [problem.path for problem in check(flat)] == ["optimizer.sharding"]


DS = "torchrun --nproc_per_node 8 train.py --deepspeed"
FAULTS = {
    f"{DS} batch.json {TRAINER} --gradient_accumulation_steps 3": "train_batch_size: is 256, not micro-batch 4 \\* 3 accumulation steps \\* 8",
    f"{DS} params.json {TRAINER}": "offload_param: goes with ZeRO-3 alone",
    f"accelerate launch --config_file params.yaml train.py {TRAINER}": "offload_param: goes with ZeRO-3 alone",
    f"accelerate launch --config_file eight.yaml train.py {TRAINER}": "mixed_precision: is fp8",
    f"accelerate launch --config_file ulysses.yaml train.py {TRAINER}": "parallelism_config_sp_size",
    f'torchrun train.py --fsdp "shard_grad_op offload" {TRAINER}': "offload of weights that are not sharded",
    f'torchrun train.py --fsdp "hybrid_shard auto_wrap" {TRAINER}': "HYBRID_SHARD is not described",
    f"torchrun train.py {TRAINER} --use_peft --lora_r 16": "lora_target_modules: is missing, and what the program takes",
    f"deepspeed train.py --deepspeed auto.json {TRAINER} --lora_dim 128": "lora_dim: is 128: trains adapters",
    "torchrun train.py --per_device_train_batch_size two": "per_device_train_batch_size: is 'two'",
    "torchrun train.py --per_device_train_batch_size 0": "per_device_train_batch_size: is 0",
    "accelerate launch --use_fsdp train.py": "per_device_train_batch_size: is missing",
    f"torchrun train.py {TRAINER} --max_steps all": "max_steps: is 'all'",
    f"accelerate launch --config_file none.yaml train.py {TRAINER}": "parallelism_config_tp_size: is 0",
    f"accelerate launch --config_file text.yaml train.py {TRAINER}": "num_processes: is '8'",
    f"{DS} auto.json --per_device_train_batch_size 0": "train_micro_batch_size_per_gpu: is missing",
    f"{DS} none.json {TRAINER}": "autotp_size: is 0",
    f"deepspeed train.py --zero_stage 2 --deepspeed {TRAINER}": "the configuration of DeepSpeed is in the program",
}
FAULTY = {
    "batch.json": '{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}',
    "params.json": '{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}',
    "params.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, offload_param_device: cpu}\n",
    "eight.yaml": "distributed_type: FSDP\nmixed_precision: fp8\n",
    "none.yaml": "distributed_type: FSDP\nparallelism_config: {parallelism_config_tp_size: 0}\n",
    "text.yaml": "distributed_type: FSDP\nnum_processes: '8'\n",
    "none.json": '{"tensor_parallel": {"autotp_size": 0}}',
    "ulysses.yaml": "distributed_type: FSDP\nparallelism_config: {parallelism_config_sp_size: 2}\n",
}


@pytest.mark.parametrize("line", FAULTS)
def test_what_cannot_be_read_is_named(line: str, tmp_path: Path) -> None:
    for name, text in FAULTY.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=FAULTS[line]) as caught:
        read(line, tmp_path)
    assert all(problem.hint for problem in caught.value.problems) and len(caught.value.problems) == 1


def test_faults_name_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ntensor_parallel_degree = "8"\n'
    )
    (tmp_path / "b.sh").write_text(
        "# --num-layers\ntorchrun pretrain_gpt.py \\\n  --hidden-size 64 --num-layers many\n"
    )
    for name, place in (("a.toml", "line 5: tensor_parallel_degree"), ("b.sh", "line 3: --num-layers")):
        with pytest.raises(SpecError) as caught:
            plan_from_launch(tmp_path / name, cluster=cluster_of(1))
        assert caught.value.problems[0].path == f"{tmp_path / name}: {place}"
