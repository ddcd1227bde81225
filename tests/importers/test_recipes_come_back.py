"""A recipe that `fit --recipe` writes is read back as the job it was written for: every way to train, with options and
adapters in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from shardwright import Job, Plan, load_cluster, load_model, make_job
from shardwright.exporters.exported import yaml_text
from shardwright.exporters.recipes import PREFERENCES, RECIPES, Task, as_run, start
from shardwright.importers.launch import plan_from_launch
from shardwright.search.sizing import TrainingWay, ways
from shardwright.spec.adapter import ATTENTION, LINEAR, Adapter, Target, parse_adapter
from shardwright.spec.options import Options
from shardwright.spec.preference import Preference

ADAPTERS = (
    parse_adapter("lora:16"),
    replace(parse_adapter("dora:8", "q_proj+v_proj"), alpha=64.0),
    parse_adapter("lora:64", "attention"),
    replace(parse_adapter("lora:4", "q_proj+down_proj"), alpha=4.0),
)
OPTIONS = (Options(), Options(loss="chunked"), Options(activation_offload="inputs"),
           Options(loss="chunked", activation_offload="inputs"))  # fmt: skip
# Models, with their matrices that PEFT can be told by name; experts have none, beside others than attention's all have.
MODELS: dict[str, tuple[Target, ...]] = {
    "llama-3.1-8b": LINEAR, "qwen3-8b": LINEAR, "qwen3-30b-a3b": ATTENTION, "phi-3-mini": (), "gemma-2-2b": LINEAR,
    "deepseek-v2-lite": ATTENTION, "mixtral-8x7b": ATTENTION,
}  # fmt: skip


def jobs(trainer: str) -> Iterator[tuple[str, str, Task]]:
    """Yield each way with its model and cluster; options, losses over preferences, adapters, models and types take
    turns."""
    named = [Preference(loss=loss) for loss in PREFERENCES[trainer]]
    before = [replace(preference, precomputed=True) for preference in named if preference.reference]
    losses = cycle((None, *named, None, *before))
    options, models, types = cycle(OPTIONS), cycle(MODELS.items()), cycle(("bf16", "bf16", "fp16"))
    for adapter in ADAPTERS:
        for gpus in (1, 4):
            job = make_job(global_batch=gpus, seq_len=1536, framework="fsdp")
            for way in ways(gpus, replace(job, adapter=adapter)):
                if way.sharding == "zero1" or (gpus == 1 and way.sharding != "none"):
                    continue  # of which there are no recipes
                name, known = next(models)
                way = replace(way, adapter=way.adapter and _of_model(way.adapter, name, known))
                yield name, f"1x{gpus}xH100-SXM", _task(name, gpus, way, next(options), next(types), next(losses))


def _of_model(adapter: Adapter, model: str, known: tuple[Target, ...]) -> Adapter:
    """Return an adapter beside those of its matrices that a model has and PEFT can name, beside all where it has none."""
    targets = tuple(target for target in adapter.targets if target in known)
    whole = () if model.startswith("deepseek") else known
    return replace(adapter, targets=(LINEAR if whole or not known else known) if targets in ((), whole) else targets)


def _task(
    name: str, gpus: int, way: TrainingWay, options: Options, precision: str, preference: Preference | None
) -> Task:
    options = options if preference is None else replace(options, loss=None)
    if not way.recompute:
        options = replace(options, activation_offload=None)
    optimizer = "adam" if way.offload else "adam8bit"
    job = make_job(global_batch=3 * gpus, seq_len=1536, framework="fsdp", precision=precision, optimizer=optimizer)
    job = replace(job, options=options, preference=preference)
    flash = precision == "bf16"  # or the attention of PyTorch, which is fused too
    return Task(model=load_model(name), source=name, job=job, way=way, samples=3, flash_attention=flash)


def expected(trainer: str, task: Task) -> Job:
    """Return the job that a trainer makes of a recipe: the one sized for it, but for a kernel that is not there."""
    job = task.way.of(as_run(trainer, task.job))
    if trainer == "llamafactory" and task.model.family == "deepseek_v2":  # for which it has no kernel of Liger's
        job = replace(job, options=replace(job.options, loss=None))
    return job


def decided(plan: Plan) -> tuple[object, ...]:
    (replica,) = plan.replicas
    sharing = plan.optimizer.sharding, plan.optimizer.offload
    return plan.job, plan.gpus, plan.micro_batch, *sharing, replica.stages[0].recompute.granularity


@pytest.mark.parametrize("trainer", RECIPES)
def test_recipes_are_read_back(trainer: str, tmp_path: Path) -> None:
    for name, cluster, task in jobs(trainer):
        (tmp_path / "recipe.yaml").write_text(yaml_text(RECIPES[trainer](task)))
        gpus = load_cluster(cluster).gpus
        (tmp_path / "run.sh").write_text(f"{start(trainer, task.job, gpus)}\n")
        plan = plan_from_launch(tmp_path / "run.sh", cluster=load_cluster(cluster), model=task.model).plan
        way = task.way
        recompute = "full" if way.recompute else "none"
        assert decided(plan) == (expected(trainer, task), gpus, 3, way.sharding, way.offload, recompute), (name, task)
