"""Recipes of NeMo 2 and Megatron-Bridge by name: what they set where a file that builds on one says nothing.

`data/recipes.csv` has a row for each, made of the trainers' packages by `tests.targets.recipes`: its model, or the
recipe that it is another name of, and what it sets beside `COMMON`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.errors import bad, suggestion
from shardwright.files import shipped_table
from shardwright.importers.paths import literal
from shardwright.importers.python_values import COMPUTED, Path, PythonValues
from shardwright.importers.settings import BRIDGE_COMMON
from shardwright.records import record

NEMO = "nemo.collections.llm"
PACKAGES = ("nemo", "nemo_run", "megatron", "torch", "lightning")  # whose functions make parts of configurations
BRIDGE_RECIPES = "megatron.bridge.recipes"
# What the trainers and optimizers of all recipes of NeMo 2 have (recipes/*.py, recipes/optim/adam.py,
# recipes/precision/mixed_precision.py and GPTConfig of NeMo 2.4.1).
COMMON: Mapping[str, Mapping[Path, Any]] = {
    "nemo": {
        ("mixed_precision",): "bf16-mixed",
        ("optimizer", "use_distributed_optimizer"): True,
        ("ddp", "overlap_grad_reduce"): True,
        ("ddp", "overlap_param_gather"): True,
        ("model", "cross_entropy_loss_fusion"): True,
        ("model", "moe_token_dispatcher_type"): "alltoall",
        ("trainer", "devices"): 8,
        ("trainer", "num_nodes"): 1,
    },
    "bridge": BRIDGE_COMMON,
}
# Parameters of NeMo's recipes, and where its objects keep what Megatron-LM's arguments say.
PARALLELISM = {
    "tensor_parallelism": "tensor_model_parallel_size",
    "pipeline_parallelism": "pipeline_model_parallel_size",
    "virtual_pipeline_parallelism": "virtual_pipeline_model_parallel_size",
    "context_parallelism": "context_parallel_size",
    "sequence_parallelism": "sequence_parallel",
    "expert_parallelism": "expert_model_parallel_size",
    "num_gpus_per_node": "devices",
}
SECTIONS: Mapping[Path, Path] = {
    ("trainer", "strategy", "ddp"): ("ddp",),
    ("trainer", "strategy"): ("model",),
    ("strategy", "ddp"): ("ddp",),
    ("strategy",): ("model",),
    ("trainer", "plugins", "precision"): ("mixed_precision",),
    ("plugins", "precision"): ("mixed_precision",),
    ("trainer", "plugins"): ("mixed",),
    ("plugins",): ("mixed",),
    ("model", "config"): ("model",),
    ("optim", "config"): ("optimizer",),
    ("data",): ("train",),
}


@record(kw_only=False)
class Recipe:
    """A recipe's model and settings, by the paths that Megatron-Bridge's configuration has."""

    model: str
    values: Mapping[Path, Any]


def recipe_named(trainer: str, name: str) -> Recipe | None:
    """Return the recipe of a trainer, None where it is not listed."""
    rows = {
        row["recipe"]: row for row in shipped_table("shardwright.importers", "recipes.csv") if row["trainer"] == trainer
    }
    row = rows.get(name)
    row = rows.get(row["model"], row) if row else None
    if row is None:
        return None
    said = (word.partition("=")[::2] for word in row["settings"].split())
    return Recipe(row["model"], with_defaults(COMMON[trainer], {(key,): literal(value) for key, value in said}))


def recipe_of(source: PythonValues, name: str) -> tuple[str, Recipe] | None:
    """Return the recipe that a Python file builds on, with its trainer. Raises SpecError for one that is not listed."""
    for called, _ in source.calls:
        first, _, rest = called.partition(".")
        origin = ".".join(filter(None, (source.imports.get(first, first), rest)))
        parts = origin.split(".")
        trainer = "nemo" if parts[-1].endswith("_recipe") else "bridge" if origin.startswith(BRIDGE_RECIPES) else None
        if trainer == "nemo" and not origin.startswith((NEMO, "llm.", "nemo.")):
            continue
        if trainer is None or (trainer == "bridge" and not parts[-1].endswith("_config")):
            continue
        title = parts[-2] if trainer == "nemo" else parts[-1]
        if trainer == "nemo" and parts[-1] != "pretrain_recipe":
            message = f"{parts[-1]} of {title} trains adapters unless it is told not to, and sets other sizes for each"
            raise bad(name, message, "write out what it sets in a pretrain_recipe, or describe the plan in a plan file")
        if trainer == "nemo" and source.values.get(("performance_mode",)):
            title = f"{title}.performance"
        return trainer, listed(trainer, title, name)
    return None


def refuse_foreign_base(source: PythonValues, name: str) -> None:
    """Raise SpecError for a configuration that is made by a function of a file that is not read."""
    for base in source.bases:
        origin = source.imports.get(base.partition(".")[0], "")
        if origin and origin.lstrip(".").partition(".")[0] not in PACKAGES and base.rsplit(".", 1)[-1][:1].islower():
            message = f"builds on {base} of another file ({origin.rpartition('.')[0]})"
            raise bad(name, message, "write what it sets into this file, or evaluate that file")


def model_of_class(source: PythonValues) -> str | None:
    """Return the model that a class of NeMo 2 describes which the file hands over, None where there is none."""
    names = {name.rsplit(".", 1)[-1] for name in (*source.handed, *(called for called, _ in source.calls))}
    rows = shipped_table("shardwright.importers", "recipes.csv")
    return next((row["model"] for row in rows if row["config"] and row["config"] in names), None)


def with_defaults(defaults: Mapping[Path, Any], values: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return fields over defaults of the same last names."""
    said = {path[-1] for path in values}
    return {**{path: value for path, value in defaults.items() if path[-1] not in said}, **values}


def listed(trainer: str, title: str, name: str) -> Recipe:
    """Return a recipe by name. Raises SpecError for one that is not listed."""
    recipe = recipe_named(trainer, title)
    if recipe is None:
        rows = shipped_table("shardwright.importers", "recipes.csv")
        known = [row["recipe"] for row in rows if row["trainer"] == trainer]
        raise bad(name, f"builds on the recipe {title}, which is not known here", suggestion(title, known))
    return recipe


def renamed(values: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return the fields of NeMo 2's objects by the paths of Megatron-Bridge's configuration. What computes a section
    whose fields are said (`strategy=strategy`) says nothing itself."""
    moved = {_moved(path): value for path, value in values.items()}
    sections = {
        ("strategy",),
        ("trainer",),
        ("data",),
        ("model",),
        ("optim",),
        ("plugins",),
        ("config",),
        ("callbacks",),
    }
    return {path: value for path, value in moved.items() if not (value is COMPUTED and path in sections)}


def _moved(path: Path) -> Path:
    path = (*path[:-1], PARALLELISM.get(path[-1], path[-1]))
    if path in (("plugins",), ("trainer", "plugins")):  # which a call makes, whose name says the types
        return ("mixed_precision",)
    for section, target in SECTIONS.items():
        if path[: len(section)] == section and (len(path) > len(section) or section[-1] == "precision"):
            return (*target, *path[len(section) :])
    return path
