"""Launch files as people write them, with what a plan of them has: read as each trainer would run them, or refused by
name. What is expected was worked out by hand, from each trainer's own defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shardwright import SpecError, load_cluster, load_model
from shardwright.importers.launch import plan_from_launch

ONE, TWO, FOUR = "1x8xH100-SXM", "2x8xH100-SXM", "4x8xH100-SXM"
LLAMA = "llama-3.1-8b"
FULL8 = {"gpus": 8, "tp": 1, "sharding": "zero3", "precision": "bf16", "recompute": "full", "flash": True}
ZERO3 = '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "zero_optimization": {"stage": 3, "overlap_comm": true, "stage3_gather_16bit_weights_on_model_save": true}, "bf16": {"enabled": "auto"}}'


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file with those beside it, and what a plan of it has; or the words with which it is refused. `words` are what
    the screen must name beside the plan."""

    files: dict[str, str]
    expected: dict[str, Any] | str
    cluster: str = ONE
    model: str | None = None
    seq_len: int | None = None
    preference: str | None = None
    arguments: tuple[str, ...] = ()
    words: tuple[str, ...] = field(default=())


def launch(line: str, expected: dict[str, Any] | str, **more: Any) -> Case:
    files = more.pop("files", {})
    return Case(files={"run.sh": f"#!/bin/bash\n{line}\n", **files}, expected=expected, **more)


def check(case: Case, folder: Path) -> None:
    """Hold what a launch file is read as, or the words with which it is refused, against what is expected."""
    for file, text in case.files.items():
        (folder / file).write_text(text)
    options: dict[str, Any] = {
        "cluster": load_cluster(case.cluster),
        "model": load_model(case.model) if case.model else None,
        "seq_len": case.seq_len,
        "preference": case.preference,
        "arguments": case.arguments,
    }
    path = folder / next(iter(case.files))
    if isinstance(case.expected, str):
        with pytest.raises(SpecError, match=case.expected) as caught:
            plan_from_launch(path, **options)
        assert all(problem.hint for problem in caught.value.problems)
        return
    reading = plan_from_launch(path, **options)
    read = shape(reading.plan)
    assert {key: read[key] for key in case.expected} == case.expected
    screen = " | ".join((*reading.notes, *reading.uncounted))
    assert all(word in screen for word in case.words), screen


def shape(plan: Any) -> dict[str, Any]:
    (replica,) = plan.replicas
    stage = replica.stages[0]
    return {
        "gpus": plan.gpus,
        "tp": stage.tensor_parallel,
        "cp": stage.context_parallel,
        "pp": len(replica.stages),
        "ep": stage.expert_parallel,
        "micro": plan.micro_batch,
        "batch": plan.job.global_batch,
        "seq": plan.job.seq_len,
        "sharding": plan.optimizer.sharding,
        "offload": plan.optimizer.offload,
        "precision": plan.job.precision,
        "recompute": stage.recompute.granularity,
        "layers": stage.recompute.layers,
        "framework": plan.job.framework,
        "optimizer": plan.job.optimizer,
        "preference": None if plan.job.preference is None else plan.job.preference.name,
        "loss": plan.job.loss,
        "rank": plan.job.optimizer_rank,
        "flash": plan.flash_attention,
        "model": plan.model.name,
    }
