"""Whatever shards the state, the degrees that a Trainer's configuration splits a model by are read, or refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwright import SpecError, load_cluster
from shardwright.importers.launch import plan_from_launch
from tests.importers.launch_cases import shape

SHARDING: dict[str, dict[str, Any]] = {
    "FSDP": {"distributed_type": "FSDP"},
    **{
        f"DeepSpeed {stage}": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": stage}}
        for stage in (1, 2, 3)
    },
    **{f"its JSON {stage}": {"deepspeed": {"zero_optimization": {"stage": stage}}} for stage in (1, 2, 3)},
}
FIELDS: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 3,
    "bf16": True,
    "model_name_or_path": "Qwen/Qwen3-8B",
    "max_length": 4096,
}
# Accelerate's options, its sections and axolotl's keys, with what they split.
DEGREES = {
    ("parallelism_config_tp_size",): "tp",
    ("parallelism_config_cp_size",): "cp",
    ("parallelism_config", "parallelism_config_tp_size"): "tp",
    ("parallelism_config", "parallelism_config_cp_size"): "cp",
    ("parallelism_config", "tp_size"): "tp",
    ("parallelism_config", "cp_size"): "cp",
    ("tensor_parallel_size",): "tp",
    ("context_parallel_size",): "cp",
    ("sequence_parallel_degree",): "cp",
}
OF_AXOLOTL = {"base_model": "Qwen/Qwen3-8B", "micro_batch_size": 2, "sequence_len": 4096}
# Keys of programs of their own, of DeepSpeed's pipelines, Ulysses and LLaMA-Factory's Megatron-Core Adapter.
STRANGE = (
    *("pipe_parallel_size", "model_parallel_size", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("expert_model_parallel_size", "expert_parallel_size", "ulysses_parallel_size", "sequence_parallel_size"),
    *("ulysses-parallel-size", "tp_size", "pp_size", "sp_size", "ep_size", "cp_degree", "grad_accum_steps"),
    *("grad_acc_steps", "gradient_accum_steps", "accumulation_steps", "accumulate_grad_batches"),
)


def read(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the shape of the plan that a configuration is on eight GPUs."""
    path = folder / "file.yaml"
    path.write_text(yaml.safe_dump(fields))
    return shape(plan_from_launch(path, cluster=load_cluster("1x8xH100-SXM")).plan)


@pytest.mark.parametrize(("sharding", "key"), list(product(SHARDING, DEGREES)), ids=str)
def test_a_degree_is_read_whatever_shards_the_state(sharding: str, key: tuple[str, ...], tmp_path: Path) -> None:
    """Under DeepSpeed too, where axolotl and Accelerate split sequences (axolotl/core/trainers/base.py of 0.19)."""
    axolotl = key[0] in ("tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree")
    section: dict[str, Any] = {key[0]: {key[1]: 4}} if len(key) > 1 else {key[0]: 4}
    fields = {**FIELDS, **SHARDING[sharding], **section}
    if axolotl:
        state = {"deepspeed": fields["deepspeed"]} if "deepspeed" in fields else {"fsdp_config": {"fsdp_version": 2}}
        fields = {**OF_AXOLOTL, "gradient_accumulation_steps": 3, "bf16": True, **state, **section}
    split = read(tmp_path, fields)
    assert (split[DEGREES[key]], split["batch"]) == (4, 2 * 3 * 8 // 4)


@pytest.mark.parametrize("sharding", SHARDING)
def test_sequences_split_by_heads_are_refused_whatever_shards_the_state(sharding: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"parallelism_config_sp_size: .*Ulysses"):
        read(tmp_path, {**FIELDS, **SHARDING[sharding], "parallelism_config_sp_size": 4})


@pytest.mark.parametrize("key", STRANGE)
def test_a_key_that_by_its_name_splits_the_model_or_the_batch_is_no_remark(key: str, tmp_path: Path) -> None:
    for value in (4, "4", True):
        if value is True and "accum" in key:
            continue
        with pytest.raises(SpecError, match=f"{key}: is {value}: (splits|accumulates)|{key}: is no key"):
            read(tmp_path, {**FIELDS, **SHARDING["FSDP"], key: value})
    assert read(tmp_path, {**FIELDS, **SHARDING["FSDP"], key: 1})["batch"] == 48
