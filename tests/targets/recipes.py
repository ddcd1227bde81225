"""What the recipes of NeMo 2 and Megatron-Bridge set, read off the syntax trees of their packages.

    tests/targets/schemas.sh

fills a folder with the unpacked packages and runs this module on it. Writes `importers/data/recipes.csv`: a recipe a
row with its model and those of its settings that decide a plan, beside what all recipes of its trainer have
(`importers.recipes`). A recipe that computes one of them has no row.
"""

from __future__ import annotations

import ast
import csv
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import shardwright.importers
from shardwright.importers.python_values import COMPUTED, python_values
from shardwright.importers.recipes import COMMON, renamed
from shardwright.spec.read.presets import find_preset

OUT = Path(shardwright.importers.__file__).parent / "data" / "recipes.csv"
NEMO = "nemo_toolkit/nemo/collections/llm/recipes"
BRIDGE = "megatron_bridge/megatron/bridge/recipes"
FAMILIES = ("llama", "qwen", "gpt", "gemma")  # those of others lay their stages out by functions
DECISIVE = frozenset(
    (
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
        *("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel"),
        *("seq_length", "global_batch_size", "micro_batch_size", "account_for_embedding_in_pipeline_split"),
        *("account_for_loss_in_pipeline_split", "num_layers_in_first_pipeline_stage"),
        *("num_layers_in_last_pipeline_stage", "recompute_granularity", "recompute_method", "recompute_num_layers"),
        *("recompute_modules", "overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer"),
        *("use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype"),
        *("exp_avg_sq_dtype", "mixed_precision", "cross_entropy_loss_fusion", "moe_token_dispatcher_type"),
        *("tp_comm_overlap", "num_nodes", "devices", "use_megatron_fsdp"),
    )
)
CONFIG = re.compile(r"run\.Config\((?:llm\.)?(\w*Config\w*)")
HUGGING_FACE = re.compile(r'"([\w.-]+/[\w.-]+)"')
# Models that a recipe of NeMo describes itself.
OWN = {"gpt3_175b": "gpt3-175b"}
USUAL = ("1", "False", "None")
NEVER_USUAL = ("recompute_num_layers", "grad_reduce_in_fp32", "micro_batch_size")
REDUCED = ("mixed", "grad_reduce_in_fp32")  # of NeMo's plugin, which overrides that of data parallelism
MOMENTS = frozenset(("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"))


def rows(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of both trainers."""
    for file in sorted((folder / NEMO).glob("*.py")):
        text = file.read_text(encoding="utf-8")
        names = HUGGING_FACE.findall(text)
        model = OWN.get(file.stem) or next(filter(None, map(find_preset, names)), None)
        functions = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
        if (
            model is None
            or "pretrain_recipe" not in functions
            or file.stem.startswith(("mamba", "hf_auto", "deepseek"))
        ):
            continue
        read = python_values(text, file.name, "pretrain_recipe")
        values = renamed(read.values)
        if any(called == "bf16_mixed" for called, _ in read.calls):
            values.pop(("mixed_precision",), None)
        config = next(iter(CONFIG.findall(text)), "")
        yield from _row("nemo", file.stem, model, values, file.name, config)
        if "pretrain_performance_optimizations" in functions:
            more = python_values(text, file.name, "pretrain_performance_optimizations").values
            yield from _row("nemo", f"{file.stem}.performance", model, {**values, **renamed(more)}, file.name)
    for family in FAMILIES:
        for file in sorted((folder / BRIDGE / family).rglob("*.py")):
            yield from _of_bridge(file, str(file.relative_to(folder / BRIDGE)))


def _of_bridge(file: Path, source: str) -> Iterator[dict[str, str]]:
    text = file.read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom):  # names of older releases
            yield from (
                {"trainer": "bridge", "recipe": alias.asname, "model": alias.name, "source": source}
                for alias in node.names
                if alias.asname and "pretrain" in alias.asname
            )
        if isinstance(node, ast.FunctionDef) and re.search(r"_pretrain_\w*config$", node.name):
            found = python_values(text, file.name, node.name)
            name = next(
                (given[0] for called, given in found.calls if called.endswith("from_hf_pretrained") and given), ""
            )
            of_layouts = any("layout" in called for called, _ in found.calls)
            common = any(called == "_pretrain_common" for called, _ in found.calls)
            if common and not of_layouts and isinstance(name, str) and (model := find_preset(name)):
                yield from _row("bridge", node.name, model, found.values, source)


def _row(
    trainer: str, recipe: str, model: str, values: Mapping[Any, Any], source: str, config: str = ""
) -> Iterator[dict[str, str]]:
    """Yield the row of a recipe, none where a setting is computed."""
    decisive = {path[-1]: value for path, value in values.items() if path[-1] in DECISIVE or path == REDUCED}
    if COMPUTED in decisive.values():
        return
    aware = decisive.get("use_precision_aware_optimizer") is True
    common = {path[-1]: str(value) for path, value in COMMON[trainer].items()}
    said = {
        key: _text(value)
        for key, value in decisive.items()
        if not _usual(key, _text(value), common) and (aware or key not in MOMENTS)
    }
    settings = " ".join(f"{key}={value}" for key, value in said.items())
    yield {
        "trainer": trainer,
        "recipe": recipe,
        "model": model,
        "config": config,
        "settings": settings,
        "source": source,
    }


def _usual(key: str, text: str, common: Mapping[str, str]) -> bool:
    return common[key] == text if key in common else text in USUAL and key not in NEVER_USUAL


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def main() -> None:
    every = list(rows(Path(sys.argv[1])))
    described = {row["recipe"] for row in every if find_preset(row["model"])}
    kept = [row for row in every if row["recipe"] in described or row["model"] in described]
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(
            file, ["trainer", "recipe", "model", "config", "settings", "source"], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(kept)


if __name__ == "__main__":
    main()
