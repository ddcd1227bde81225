"""Every launch file of the tables of `doors` is read right, or refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import SpecError
from shardwright.importers.launch import plan_from_launch
from shardwright.spec.adapter import LINEAR
from shardwright.spec.job import Job
from shardwright.spec.options import VALUES, said
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.model import load_model
from tests.importers.doors import Door, doors
from tests.importers.test_launch_files import shape

DOORS = doors()


def written(door: Door, folder: Path) -> Path:
    for file, text in door.files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    return folder / next(iter(door.files))


def asked_of_trainer(job: Job) -> dict[str, object]:
    """Return adapters and options of a job as tables write them."""
    adapter, options = job.adapter, dict.fromkeys(VALUES, None) | said(job.options)
    if adapter is None:
        return {"adapter": None, "targets": None, "alpha": None, **options}
    targets = "linear" if adapter.targets == LINEAR else "+".join(adapter.targets)
    return {"adapter": adapter.name, "targets": targets, "alpha": f"{adapter.scale * adapter.rank:.4g}", **options}


@pytest.mark.parametrize("name", DOORS)
def test_a_file_is_read_right_or_refused_by_name(name: str, tmp_path: Path) -> None:
    door = DOORS[name]
    options: dict[str, Any] = {
        "cluster": load_cluster(door.cluster),
        "model": load_model(door.model) if door.model else None,
        "seq_len": door.seq,
        "arguments": door.arguments,
    }
    path = written(door, tmp_path)
    if door.refused is not None:
        with pytest.raises(SpecError, match=door.refused) as caught:
            plan_from_launch(path, **options)
        assert all(problem.hint for problem in caught.value.problems)
        return
    reading = plan_from_launch(path, **options)
    plan = reading.plan
    has = shape(plan) | {
        "vpp": plan.schedule.virtual_stages,
        "sp": plan.sequence_parallel,
        "grads": plan.overlap.grad_reduce,
        "overlap": plan.overlap.tensor_parallel,
        **asked_of_trainer(plan.job),
    }
    assert {key: str(has[key]) for key in door.expect} == door.expect
    screen = " | ".join((*reading.notes, *reading.uncounted))
    assert all(words in screen for words in door.says), screen
    assert not any(re.search(words, screen) for words in door.silent), screen
