"""Configurations of LLM Foundry, which Composer runs (MosaicML), as Megatron-LM's arguments.

Its models `mpt_causal_lm` are described in the file, `hf_causal_lm` by a name of Hugging Face. What it leaves out is as
in MPTConfig (llmfoundry/models/mpt/configuration_mpt.py) and FSDPConfig (composer/utils/parallelism.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.errors import bad
from shardwright.importers.fields import TrainerFields, TrainerSettings, job_of, words_of
from shardwright.importers.trainers import (
    FULL,
    STRATEGIES,
    batch_words,
    optimizer_of,
    sharding_words,
)
from shardwright.spec.text.reading import parsed

PRECISIONS = {"amp_bf16": ("--bf16",), "amp_fp16": ("--fp16",), "fp32": ()}
PARAMETERS = "/mnt/config/parameters.yaml"  # where the platform puts them
BATCHES, TOKENS = re.compile(r"(\d+)ba"), re.compile(r"(\d+)tok")


def mosaic_run(text: str, name: str) -> tuple[str, dict[str, str], dict[str, str]] | None:
    """Return what a run of MosaicML's platform (`mcli run -f`) starts, with its environment and the file of parameters
    that it has there; None for any other YAML."""
    run = parsed(text, name)
    command = run.get("command") if isinstance(run, Mapping) else None
    if not isinstance(run, Mapping) or not isinstance(command, str) or not isinstance(run.get("parameters"), Mapping):
        return None
    compute = run.get("compute", {})
    gpus = compute.get("gpus", run.get("gpu_num")) if isinstance(compute, Mapping) else None
    if gpus is not None and not re.fullmatch(r"[1-9]\d*", str(gpus)):
        raise bad(f"{name}: `gpus`", f"is {gpus!r}", "write how many GPUs the run has")
    around = {} if gpus is None else {"WORLD_SIZE": str(gpus)}
    return command, around, {PARAMETERS: json.dumps(run["parameters"], default=str)}


def foundry_settings(config: TrainerFields, gpus: int) -> TrainerSettings:
    """Return a configuration of LLM Foundry."""
    micro, total = _batch(config, gpus)
    length = config.whole("max_seq_len", 2048)
    precision = str(config.first("precision") or "amp_bf16")
    if precision not in PRECISIONS:
        config.report("precision", f"is {precision}, which is not described", f"use {', '.join(PRECISIONS)}")
    hub = config.first("kind") == "hf_causal_lm"
    model = str(config.first("pretrained_model_name_or_path")) if hub else None
    optimizer, uncounted = optimizer_of(config, "optimizer")
    words = (
        *sharding_words(_stage(config)),
        *batch_words(micro, total),
        *("--seq-length", str(length)),
        *(FULL if config.first("activation_checkpointing") is True else ()),
        *PRECISIONS.get(precision, ()),
        *_iterations(config, total * length),
        *(() if hub else _mpt(config, length)),
        *(("--attention-backend", "unfused") if config.first("attn_impl") in ("torch", "eager") else ()),
    )
    return TrainerSettings(words, uncounted, job_of("fsdp", optimizer=optimizer), model)


def _batch(config: TrainerFields, gpus: int) -> tuple[int, int]:
    """Return micro-batch and global batch. "auto" finds the former while it runs."""
    total = config.whole("global_train_batch_size", 0)
    if not total:
        config.report("global_train_batch_size", "is missing", "write it: all samples of a step")
        return 1, gpus
    if config.first("device_train_microbatch_size") is None:  # "auto", too
        message = "is auto: the largest that fits is found while it runs"
        config.report("device_train_microbatch_size", message, "write the number that it found")
        return 1, total
    micro = config.whole("device_train_microbatch_size", 1)
    if total % gpus:
        message = f"{total} does not divide by the {gpus} GPUs"
        config.report("global_train_batch_size", message, "change it, or give the cluster that it is for")
    share = max(total // gpus, 1)
    micro = min(micro, share)  # Composer lowers it
    if share % micro:
        message = f"is {micro}, of which the {share} samples of a GPU are no multiple"
        config.report("device_train_microbatch_size", message, "write a number that divides them")
    return micro, total


def _stage(config: TrainerFields) -> int:
    """Return the stage of ZeRO that FSDP's strategy is; without a section for FSDP nothing is sharded."""
    if not any(path[0] == "fsdp_config" for path in config.values):
        return 0
    if config.whole("data_parallel_replicate_degree", 1) > 1:
        config.report("data_parallel_replicate_degree", "hybrid sharding is not described", "shard over all ranks")
    strategy = str(config.first("sharding_strategy") or "FULL_SHARD").upper()
    if strategy not in STRATEGIES:
        config.report("sharding_strategy", f"{strategy} is not described", "use FULL_SHARD or SHARD_GRAD_OP")
    return STRATEGIES.get(strategy, 3)


def _iterations(config: TrainerFields, tokens: int) -> Iterator[str]:
    duration = str(config.first("max_duration"))
    if match := BATCHES.fullmatch(duration):
        yield from ("--train-iters", match[1])
    elif match := TOKENS.fullmatch(duration):
        yield from ("--train-iters", str(max(int(match[1]) // tokens, 1)))


def _mpt(config: TrainerFields, length: int) -> tuple[str, ...]:
    """Return the model that MPTConfig describes."""
    width = config.whole("d_model", 2048)
    groups: Any = config.first("kv_n_heads") or (1 if config.first("attn_type") == "multiquery_attention" else None)
    return words_of(
        {
            "--hidden-size": width,
            "--num-attention-heads": config.whole("n_heads", 16),
            "--num-layers": config.whole("n_layers", 24),
            "--vocab-size": config.whole("vocab_size", 50368),
            "--ffn-hidden-size": str(
                config.first("ffn_hidden_size") or round(width * config.number("expansion_ratio", 4.0))
            ),
            "--max-position-embeddings": length,
            "--hidden-dropout": str(config.first("resid_pdrop") or 0),
            "--attention-dropout": str(config.first("attn_pdrop") or 0),
            **_positions(config),
            "--kv-channels": str(config.first("head_dim")) if config.first("head_dim") else None,
            "--swiglu": config.first("ffn_type") in ("mptglu", "mb_moe"),
            "--disable-bias-linear": config.first("no_bias") is True,
            "--normalization": "RMSNorm" if "rms" in str(config.first("norm_type")) else None,
            "--qk-layernorm": config.first("qk_ln") is True,
            "--untie-embeddings-and-output-weights": config.first("tie_word_embeddings") is False,
            "--group-query-attention": bool(groups),
            "--num-query-groups": str(groups) if groups else None,
        }
    )


def _positions(config: TrainerFields) -> dict[str, object]:
    if config.first("rope") is True and config.first("alibi") is not True:
        return {"--position-embedding-type": "rope", "--rotary-base": int(config.number("rope_theta", 10_000.0))}
    learned = "learned_absolute" if config.first("learned_pos_emb") is not False else "none"
    return {"--position-embedding-type": "alibi" if config.first("alibi") is True else learned}
