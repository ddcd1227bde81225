"""Configurations of torchtitan, of its TOML (to 0.2) or its Python (0.3), as Megatron-LM's arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from shardwright.errors import bad
from shardwright.exporters.megatron.layout import layout_text
from shardwright.importers.fields import TrainerFields, TrainerSettings, job_of, words_of
from shardwright.importers.python_values import Path, PythonValues
from shardwright.importers.trainers import FULL, batch_words, offload_words, sharding_words
from shardwright.spec.options import Options

POLICIES = ("FullAC", "SelectiveAC")
CHUNKED = "ChunkedLossWrapper"  # torchtitan/components/loss.py 0.3
DEGREES = (
    *("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "context_parallel", "pipeline_parallel"),
)
# What keys are called before 0.1 (torchtitan/config_manager.py of 2024), each with its later name.
OLDER: Mapping[Path, Path] = {
    ("training", "batch_size"): ("training", "local_batch_size"),
    ("training", "compile"): ("compile", "enable"),
    ("training", "data_parallel_degree"): ("parallelism", "data_parallel_shard_degree"),
    **{
        ("training", f"{kind}_degree"): ("parallelism", f"{kind}_degree")
        for kind in ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel")
    },
    ("experimental", "context_parallel_degree"): ("parallelism", "context_parallel_degree"),
    ("experimental", "enable_async_tensor_parallel"): ("parallelism", "enable_async_tensor_parallel"),
}


def renamed(fields: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return fields under the names of later releases."""
    return {OLDER.get(path, path): value for path, value in fields.items()}


def fields_of_python(module: PythonValues, folder: str, name: str) -> dict[Path, Any]:
    """Return the fields of a configuration: the policy of recomputation, the loss and the model are calls in it, of the
    family that the file's folder is named after where it imports them from beside it. Raises SpecError for one that
    builds on a configuration of another file."""
    fields = {("activation_checkpoint", "selective_ac_option"): "op", **module.values}
    if ("activation_checkpoint",) in fields and fields.pop(("activation_checkpoint",)) is None:
        fields["activation_checkpoint", "mode"] = "none"
    converters = []
    for called, arguments in module.calls:
        first, origin = called.split(".")[0], module.imports.get(called, "..")
        if origin.rsplit(".", 2)[-2] == "config_registry":
            message = f"builds on {called} of another file ({origin.rsplit('.', 1)[0]})"
            raise bad(name, message, "write what it sets into this file, or evaluate that file")
        if first in POLICIES:
            fields["activation_checkpoint", "mode"] = first.removesuffix("AC").casefold()
        if called == "model_registry" and arguments:
            fields[("flavor",)] = arguments[0]
            fields[("family",)] = origin.split(".")[-2] or folder
        if first == CHUNKED:
            fields[("loss_wrapper",)] = first
        converters += [first] if first.endswith("Converter") else []
    if converters:
        fields = {path: value for path, value in fields.items() if path[-1] != "converters"}
        fields[("converters",)] = converters
    return fields


def torchtitan_model(config: TrainerFields) -> str | None:
    """Return family and flavor of the model, None where the configuration does not say."""
    flavor = config.first("flavor")
    family = config.first("family") or dict(config.values).get(("model", "name"), "")
    return f"{family} {flavor}" if flavor else None


def degrees_of(config: TrainerFields) -> int | None:
    """Return the GPUs that all degrees together make; None where the shards are as many as there are GPUs."""
    return math.prod(config.whole(f"{kind}_degree", 1) for kind in DEGREES) if _shards(config) > 0 else None


def _shards(config: TrainerFields) -> int:
    return config.whole("data_parallel_shard_degree", -1)


def torchtitan_settings(config: TrainerFields, gpus: int, layers: int) -> TrainerSettings:
    """Return a configuration that trains a model of so many layers."""
    tensor, context = config.whole("tensor_parallel_degree", 1), config.whole("context_parallel_degree", 1)
    depth, replicas = config.whole("pipeline_parallel_degree", 1), config.whole("data_parallel_replicate_degree", 1)
    shards, experts = _shards(config), config.whole("expert_parallel_degree", 1)
    ranks = max(gpus // (tensor * context * depth), 1)
    if shards > 0 and (product := degrees_of(config)) != gpus:
        message = f"is {shards}, which with the other degrees makes {product} of {gpus} GPUs"
        config.report("data_parallel_shard_degree", message, "write -1, or make the product the number of processes")
    shards = ranks // replicas if shards < 1 else shards
    if ranks % replicas:
        message = f"is {replicas}, of which the {ranks} data-parallel ranks are no multiple"
        config.report("data_parallel_replicate_degree", message, "write a number that divides them")
    sharers = shards * context  # `dp_shard_cp` of its parallel_dims.py: parts of a sequence share the state, too
    if replicas > 1 and sharers > 1:
        config.report(
            "data_parallel_replicate_degree", "hybrid sharding is not described", "shard over all ranks, or none"
        )
    local = config.whole("local_batch_size", 8)
    micro = config.whole("pipeline_parallel_microbatch_size", 1) if depth > 1 else local
    total = config.whole("global_batch_size", -1)
    reshard = config.first("fsdp_reshard_after_forward") or "default"
    stage = 0 if sharers <= 1 else 2 if reshard == "never" or (reshard == "default" and depth > 1) else 3
    offloads = config.first("enable_cpu_offload") is True
    if offloads and stage < 3:
        config.report("enable_cpu_offload", "offload of weights that are not sharded is not described", "write False")
    counts = _layer_counts(config, depth, layers)
    split = config.first("enable_sequence_parallel") is not False
    words = [
        *sharding_words(stage),
        *(offload_words(1.0) if offloads else ()),
        *batch_words(micro, total if total > 0 else local * ranks),
        *words_of(
            {
                "--seq-length": config.whole("seq_len", 2048),
                "--tensor-model-parallel-size": tensor,
                "--pipeline-model-parallel-size": depth,
                "--context-parallel-size": context,
                "--expert-model-parallel-size": experts,
                # Without expert parallelism tensor parallelism splits the experts, too.
                "--expert-tensor-parallel-size": config.whole("expert_tensor_parallel_degree", 1)
                if experts > 1
                else None,
                "--sequence-parallel": tensor > 1 and split,
                "--tp-comm-overlap": tensor > 1 and config.first("enable_async_tensor_parallel") is True,
                "--pipeline-model-parallel-layout": layout_text(counts, 0) if depth > 1 else None,
            }
        ),
        *_recompute(config, layers // len(counts)),
        *_precision(config),
        *words_of({"--train-iters": config.whole("steps", 0) or None}),
    ]
    options = Options(loss="chunked" if config.first("loss_wrapper") == CHUNKED else None)
    return TrainerSettings(tuple(words), (), job_of("torchtitan", options=options), torchtitan_model(config))


def _layer_counts(config: TrainerFields, depth: int, layers: int) -> tuple[int, ...]:
    """Return the layers of each virtual stage: as listed, else as torchtitan spreads them, embedding and output counted
    as a layer each or as it is told (`generate_llm_fqn_per_model_part` of its pipeline_parallel.py)."""
    parts = config.first("module_fqns_per_model_part")
    if depth == 1:
        return (layers,)
    if isinstance(parts, list | tuple) and parts:
        return tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)
    schedule = config.first("pipeline_parallel_schedule") or "1F1B"
    less = [config.whole(f"pipeline_parallel_{end}_stage_less_layers", 1) for end in ("first", "last")]
    per_stage, total = config.whole("pipeline_parallel_layers_per_stage", 0), layers + sum(less)
    stages = -(-total // per_stage) if per_stage else depth * (2 if schedule == "Interleaved1F1B" else 1)
    if stages % depth or stages > layers:
        message = f"makes {stages} stages of {layers} layers for {depth} pipeline ranks"
        config.report("pipeline_parallel_layers_per_stage", message, "make the stages a multiple of the ranks")
        return (layers,)
    usual, more = divmod(total, stages)
    counts = [usual + (place < more) for place in range(stages)]
    return (counts[0] - less[0], *counts[1:-1], counts[-1] - less[1])


def _recompute(config: TrainerFields, layers: int) -> list[str]:
    """What is recomputed of a stage of so many layers: all, operators, or every n-th layer."""
    mode = dict(config.values).get(("activation_checkpoint", "mode")) or "none"
    every = config.first("selective_ac_option") or "2"  # every second layer, to 0.2
    if mode == "selective" and str(every).isdigit():
        count = max(layers // max(int(every), 1), 1)
        return ["--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", str(count)]
    return {"full": list(FULL), "selective": ["--recompute-granularity", "selective"]}.get(str(mode), [])


def _precision(config: TrainerFields) -> list[str]:
    """The type of weights where they are used, and eight bits where linear layers are converted."""
    if config.first("mixed_precision_param") == "float32":
        return []
    named = config.first("converters")
    names = [str(name).casefold() for name in (named if isinstance(named, list | tuple) else [named or ""])]
    if any("lora" in name for name in names):
        config.report("converters", "train adapters, which are not read from its files", "leave LoRA out")
    if others := [name for name in names if name and not re.search("lora|mx|float8", name)]:
        config.report("converters", f"{others[0]} is not described", "leave it out, or use Float8LinearConverter")
    recipes = ["mxfp8" if "mx" in name else "tensorwise" for name in names if "mx" in name or "float8" in name]
    return ["--bf16", *(("--fp8-format", "hybrid", "--fp8-recipe", recipes[0]) if recipes else ())]
