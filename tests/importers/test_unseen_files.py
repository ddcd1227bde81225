"""What public files of others showed to be read wrong, each as the class that it is of."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwright import SpecError, load_cluster, load_model
from shardwright.importers.launch import plan_from_launch
from shardwright.importers.megatron.model import size_of
from shardwright.importers.megatron.read import Reading
from shardwright.importers.paths import interpolated
from shardwright.importers.settings import SPLITS, accounted, known_keys
from shardwright.importers.torchtitan import OLDER
from shardwright.spec.read.presets import find_preset, preset_names
from tests.importers.test_keys import CHAINS, schema

TOKENIZERS = {  # files and folders by the size of the vocabulary that they have
    "gpt2-vocab.json": 50257,
    "gpt-neox-20b": 50432,
    "Llama-3.1-8B": 128256,
    "llama-2": 32000,
    "Mistral-Nemo": 131072,
    "Qwen2.5": 151936,
    "deepseek-v3": 129280,
    "gemma-2": 256000,
    "bloom": 250880,
    "starcoder": 49152,
    "bpe_50k": 50000,
}
NEMO: dict[str, Any] = {
    "trainer": {"num_nodes": 1, "devices": 8, "precision": "bf16"},
    "model": {
        "micro_batch_size": 1,
        "global_batch_size": 32,
        "encoder_seq_length": 2048,
        "num_layers": 4,
        "hidden_size": 1024,
        "ffn_hidden_size": "${multiply:4, ${.hidden_size}}",
        "num_attention_heads": 16,
        "tokenizer": {"library": "huggingface", "type": "meta-llama/Meta-Llama-3.1-70B", "model": None},
    },
}
TITAN: dict[tuple[str, ...], Any] = {
    ("training", "local_batch_size"): 4,
    ("training", "seq_len"): 4096,
    ("parallelism", "data_parallel_shard_degree"): 8,
    ("parallelism", "tensor_parallel_degree"): 2,
    ("parallelism", "context_parallel_degree"): 2,
    ("parallelism", "data_parallel_replicate_degree"): 1,
    ("parallelism", "enable_async_tensor_parallel"): True,
    ("compile", "enable"): True,
}
FOREIGN = (  # programs with a parser of their own, some of whose arguments Megatron-LM has too
    "python finetune.py --base_model llama --data_path d --batch_size 256 --num_epochs=1 --cutoff_len=512 "
    "--lora_target_modules='[q_proj]' --lora_r=16 --micro_batch_size=8",
    "torchrun --nproc_per_node=2 train_fsdp.py --train_json d --seq_len 1024 --bf16 --pack_sequences "
    "--micro_batch_size 1 --grad_accum_steps 50 --log_every 20 --output_dir runs",
    "CUDA_VISIBLE_DEVICES=0 python llm_sft.py --model_type qwen-14b-chat --sft_type lora --dtype bf16 --max_length 2048 "
    "--lora_rank 8 --lora_alpha 32 --batch_size 1 --use_flash_attn false",
    "torchrun --nproc_per_node 2 finetuning_llama.py --batch_size_training 64 --enable_fsdp --num_epochs 1 --pure_bf16",
)


def read(folder: Path, text: str, name: str = "run.sh", **options: Any) -> Reading:
    (folder / name).write_text(text)
    return plan_from_launch(folder / name, cluster=load_cluster("1x8xH100-SXM"), **options)


def nemo(folder: Path, **model: Any) -> Reading:
    return read(folder, yaml.safe_dump({**NEMO, "model": {**NEMO["model"], **model}}), "gpt.yaml")


@pytest.mark.parametrize(("place", "file"), list(permutations(TOKENIZERS, 2)))
def test_a_tokenizer_is_known_by_its_file_before_its_folders(place: str, file: str) -> None:
    assert size_of(f"/lustre/{place}/data/{file}") == TOKENIZERS[file]
    assert size_of(f"/lustre/{place}/{file}/tokenizer.model") == TOKENIZERS[file]


def test_nemo_names_the_tokenizer_by_its_type_and_computes_sizes(tmp_path: Path) -> None:
    model = nemo(tmp_path).plan.model
    assert model.vocab == 128256
    assert model == nemo(tmp_path, ffn_hidden_size=4096).plan.model != nemo(tmp_path, ffn_hidden_size=2048).plan.model


@pytest.mark.parametrize("key", sorted(key.rsplit(".", 1)[-1] for key in schema("nemo1") if ".fp8_" in f".{key}"))
def test_nothing_has_eight_bits_without_their_switch(key: str, tmp_path: Path) -> None:
    """NeMo's files write `fp8_hybrid: True` beside `fp8: False` (megatron_gpt_config.yaml)."""
    for off in (False, None):
        assert nemo(tmp_path, fp8=off, **{key: True}).plan.job.precision == "bf16"


@pytest.mark.parametrize("format_key", ["fp8_hybrid", "fp8_e4m3"])
def test_the_switch_of_eight_bits_has_its_format_beside_it(format_key: str, tmp_path: Path) -> None:
    other = {"fp8_hybrid": "fp8_e4m3", "fp8_e4m3": "fp8_hybrid"}[format_key]
    assert nemo(tmp_path, fp8=True, **{format_key: True, other: False}).plan.job.precision == "fp8"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${multiply:4, ${.a}}", 28),
        ("${multiply:${.a},${x.b}}", 21),
        ("${divide_ceil:${.a}, 2}", 4),
        ("${divide_floor:${.a},2}", 3),
        ("${divide_floor:${.a},0}", "${divide_floor:7,0}"),
        ("${oc.env:A}", "${oc.env:A}"),
        ("a ${.a} b", "a 7 b"),
    ],
)
def test_resolvers_of_nemo_compute(text: str, value: object) -> None:
    fields = {("x", "a"): 7, ("x", "b"): 3, ("x", "c"): text}
    assert interpolated(fields)[("x", "c")] == value


def titan(fields: dict[tuple[str, ...], Any]) -> str:
    sections: dict[str, list[str]] = {"model": ['name = "llama3"', 'flavor = "8B"']}
    for (section, key), value in fields.items():
        sections.setdefault(section, []).append(f"{key} = {str(value).lower()}")
    return "\n".join("\n".join((f"[{name}]", *lines)) for name, lines in sections.items())


@pytest.mark.parametrize("older", OLDER, ids=".".join)
def test_an_older_key_of_torchtitan_is_read_as_its_later_name(older: tuple[str, ...], tmp_path: Path) -> None:
    cluster = load_cluster("4x8xH100-SXM")
    readings = []
    for key in (OLDER[older], older):
        fields = {path: value for path, value in TITAN.items() if path != OLDER[older]}
        path = tmp_path / "train.toml"
        path.write_text(titan({**fields, key: TITAN[OLDER[older]]}))
        readings.append(plan_from_launch(path, cluster=cluster))
    later, before = readings
    assert later.plan == before.plan and later.uncounted == before.uncounted


@pytest.mark.parametrize("key", [("float8", "enable_float8_linear"), ("training", "enable_fp8_linear")], ids=str)
def test_eight_bits_by_a_switch_of_torchtitan(key: tuple[str, ...], tmp_path: Path) -> None:
    for switch, precision in ((True, "fp8"), (False, "bf16")):
        assert read(tmp_path, titan({key: switch}), "train.toml").plan.job.precision == precision


def test_an_older_pipeline_of_torchtitan_is_refused(tmp_path: Path) -> None:
    """Its micro-batches are as many as its stages, and its stages are split by hand (config_manager.py of 2024)."""
    pipeline = ("experimental", "pipeline_parallel_degree")
    assert read(tmp_path, titan({pipeline: 1}), "train.toml").plan.gpus == 8
    with pytest.raises(SpecError, match="write it under parallelism"):
        read(tmp_path, titan({pipeline: 2}), "train.toml")


@pytest.mark.parametrize("line", FOREIGN)
def test_a_program_with_arguments_of_its_kind_is_not_taken_for_megatron_lm(line: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"most arguments of \w+\.py are of no trainer that is read"):
        read(tmp_path, line, model=load_model("llama-7b"), seq_len=512)


@pytest.mark.parametrize(("bits", "frozen"), [(4, "nf4"), (8, "int8"), (16, "16-bit"), (32, "16-bit")])
def test_bits_of_llava_are_those_of_the_frozen_weights(bits: int, frozen: str, tmp_path: Path) -> None:
    """llava/train/train.py: `if training_args.bits in [4, 8]`."""
    line = "torchrun --nproc_per_node 8 llava/train/train.py --lora_enable True --lora_r 8 --lora_target_modules all-linear"
    more = f"--per_device_train_batch_size 1 --model_max_length 512 --bf16 True --bits {bits} --version v1"
    plan = read(tmp_path, f"{line} {more} --model_name_or_path llama-2-7b").plan
    assert plan.job.adapter is not None and plan.job.adapter.frozen == frozen


@pytest.mark.parametrize("trainer", CHAINS)
def test_a_key_in_another_section_is_refused_with_its_own_and_a_plain_word_is_named(trainer: str) -> None:
    keys = [key for key, row in known_keys(trainer).items() if "." in key and row.effect not in ("none", "holds")]
    for key in keys:
        leaf = key.rsplit(".", 1)[-1]
        if any((leaf in known_keys(name)) for name in CHAINS[trainer]) or trainer in ("bridge", "nemo", "nemo1"):
            continue
        problems: list[Any] = []
        read_as = accounted({("elsewhere", leaf): 7}, CHAINS[trainer], "file", problems)
        assert "_" not in leaf or (len(problems) == 1 and leaf in problems[0].hint), key
        assert "_" in leaf or (not problems and read_as.uncounted), key


def test_names_that_split_are_no_words_of_others() -> None:
    plain = ("model_parallel_comm", "parallel", "context", "sequence_len", "acc", "steps", "expert", "size", "accuracy")
    assert not [word for word in plain for pattern, _ in SPLITS if pattern.fullmatch(word)]


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nproc_per_node 8 train.py --fsdp full_shard --per_device_train_batch_size 2 --bf16 True",
        "accelerate launch --multi_gpu --num_processes 8 train.py --per_device_train_batch_size 2 --bf16 True",
    ],
)
def test_a_length_that_nobody_says_is_asked_for_by_the_option(line: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="--seq-len"):
        read(tmp_path, line, model=load_model("llama-7b"))
    assert read(tmp_path, line, model=load_model("llama-7b"), seq_len=512).plan.job.global_batch == 16


def test_megatron_lm_takes_a_micro_batch_a_replica_where_no_batch_is_said(tmp_path: Path) -> None:
    line = "torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 2 --tensor-model-parallel-size 2 --bf16"
    assert read(tmp_path, line, model=load_model("llama-7b"), seq_len=512).plan.job.global_batch == 8


ACCELERATED = "accelerate launch{more} train.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 1 --max_length 512"


@pytest.mark.parametrize(
    ("around", "more", "gpus"),
    [("", "", 8), ("CUDA_VISIBLE_DEVICES=0,1,2,3 ", "", 4), ("export CUDA_VISIBLE_DEVICES=2\n", "", 1),
     ("CUDA_VISIBLE_DEVICES=0,1 ", " --num_processes 2", 2), ("", " --config_file ten.yaml", 10)],
)  # fmt: skip
def test_accelerate_starts_a_process_on_each_device_of_a_machine_that_it_sees(
    around: str, more: str, gpus: int, tmp_path: Path
) -> None:
    """accelerate/commands/launch.py 1.15: `torch.cuda.device_count()`, and one machine."""
    (tmp_path / "ten.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 10\n")
    (tmp_path / "run.sh").write_text(f"{around}{ACCELERATED.format(more=more)}\n")
    assert plan_from_launch(tmp_path / "run.sh", cluster=load_cluster("2x8xH100-SXM")).plan.gpus == gpus


@pytest.mark.parametrize(("option", "values"), [("learning_rate", "1e-5 2e-5"), ("seed", "1 2 3")])
def test_a_sweep_over_what_decides_nothing_is_a_plan(option: str, values: str, tmp_path: Path) -> None:
    line = f"{ACCELERATED.format(more=' --num_processes 4 --multi_gpu')} --{option} $value"
    reading = read(tmp_path, f"for value in {values}; do\n  {line}\ndone\n")
    assert reading.plan.gpus == 4 and f"{len(values.split())} trainings are started, all of this plan" in reading.notes
    with pytest.raises(SpecError, match="several trainings that differ"):
        read(tmp_path, f"for value in 1 2; do\n  {line.replace(option, 'gradient_accumulation_steps')}\ndone\n")


def test_a_folder_of_modelscope_is_the_preset_that_it_holds() -> None:
    for name in preset_names():
        assert find_preset(f"/root/.cache/modelscope/hub/Org/{name.replace('.', '___')}") == find_preset(name)


def test_ray_starts_as_many_processes_as_the_configuration_says(tmp_path: Path) -> None:
    fields = {"model_name_or_path": "Qwen/Qwen3-8B", "finetuning_type": "lora", "ray_num_workers": 4, "bf16": True}
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump({**fields, "per_device_train_batch_size": 1}))
    for around, gpus in (("USE_RAY=1 ", 4), ("", 8)):
        assert read(tmp_path, f"{around}llamafactory-cli train sft.yaml\n").plan.gpus == gpus


JOB = """#!/bin/bash
{directives}
if [ -z $SLURM_JOB_ID ]; then
    sbatch {options} "$0" "$@"
    exit
fi
BASE_DIR="$SLURM_SUBMIT_DIR"
FSDP=0
MODEL_ARGS=(--num-layers 24 --hidden-size 2048 --num-attention-heads 32 --seq-length 2048 --bf16)
MODEL_ARGS+=(--micro-batch-size 4 --global-batch-size 64 --max-position-embeddings 2048 --vocab-size 50304)
OTHER_ARGS=(--tensor-model-parallel-size 8)
COMMAND=" \\
    Megatron-LM/pretrain_gpt.py \\
    "${{MODEL_ARGS[@]}}" \\
"
srun --label singularity exec -B "$BASE_DIR" image.sif "$BASE_DIR/launch.sh" $COMMAND
"""


@pytest.mark.parametrize("directives", ["", "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4"], ids=["plain", "job"])
@pytest.mark.parametrize("started", ["", 'export RANK=$SLURM_PROCID\npython -u "$@"\n'], ids=["no script", "script"])
def test_a_script_that_submits_itself_is_read_as_the_job(directives: str, started: str, tmp_path: Path) -> None:
    """As those for LUMI and Snellius do; its launch script, if it is there, adds the interpreter."""
    if started:
        (tmp_path / "launch.sh").write_text(started)
    options = "" if directives else "--nodes 2 --ntasks-per-node 4"
    plan = read(tmp_path, JOB.format(directives=directives, options=options)).plan
    assert (plan.gpus, plan.stages[0].tensor_parallel, plan.micro_batch, plan.job.global_batch) == (8, 1, 4, 64)


def test_arrays_beside_a_program_that_is_not_known_are_not_taken_for_its_arguments(tmp_path: Path) -> None:
    arrays = "ARGS=(--num-layers 4 --hidden-size 64)\nOTHER=(--tensor-model-parallel-size 8 --micro-batch-size 1)\n"
    with pytest.raises(SpecError, match="contains no Megatron-LM argument"):
        read(tmp_path, f"{arrays}srun --nodes 2 ./compiled --config ${{ARGS[@]}}\n")


NEMO_2 = "import nemo_run as run\nfrom nemo.collections import llm\n"
BRIDGE = "from megatron.bridge.training.config import ConfigContainer\n"
OF_NEMO = "recipe.data.global_batch_size = 64\n    recipe.data.micro_batch_size = 1\n    recipe.data.seq_length = 4096"
OF_BRIDGE = OF_NEMO.replace("recipe.data.g", "recipe.train.g").replace("recipe.data.m", "recipe.train.m")


@pytest.mark.parametrize(("header", "fields"), [(NEMO_2, OF_NEMO), (BRIDGE, OF_BRIDGE)], ids=["NeMo", "Bridge"])
@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from my.recipes import base", "base(num_nodes=1)"),
        ("from my.recipes import base", "base()"),
        ("from my import recipes", "recipes.base()"),
        ("from .recipes import base as other", "other(nodes=1)"),
    ],
)
def test_a_recipe_that_is_made_by_another_file_is_refused(
    header: str, fields: str, imports: str, call: str, tmp_path: Path
) -> None:
    """Else degrees, precision and optimizer would be Megatron-LM's defaults."""
    text = f"{header}{imports}\n\ndef configure():\n    recipe = {call}\n    {fields}\n    return recipe\n"
    with pytest.raises(SpecError, match=r"builds on \S+ of another file"):
        read(tmp_path, text, "train.py", model=load_model("llama-3-8b"))
