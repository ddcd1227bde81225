"""Launch files as people write them, `doors/*.txt`, a file a trainer: every one is read right, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from shardwright import Job, SpecError, load_cluster, load_model
from shardwright.importers.launch import plan_from_launch
from shardwright.spec.adapter import LINEAR
from shardwright.spec.options import VALUES, said
from tests.importers.launch_cases import shape

FOLDER = Path(__file__).parent / "doors"
SECTION = re.compile(r"(\w+)\.(\w+:.*)")
FILE_OPTION = re.compile(r"(--[\w.-]+) (\S+\.(?:ya?ml|json))(?=\s)")  # of a program or a launcher
KEY = re.compile(r"(\s*)([\w.]+):")


@dataclass(kw_only=True)
class Door:
    """A case of a table."""

    name: str
    cluster: str = "1x8xH100-SXM"
    model: str | None = None
    seq: int | None = None
    arguments: tuple[str, ...] = ()
    expect: dict[str, str] = field(default_factory=dict)
    refused: str | None = None
    says: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


def doors() -> dict[str, Door]:
    """Return the cases of all tables by `trainer: name`."""
    cases = {}
    for table in sorted(FOLDER.glob("*.txt")):
        for door in _of_table(table.read_text(encoding="utf-8")):
            name = f"{table.stem}: {door.name}"
            assert name not in cases and (door.expect or door.refused) and door.files, name
            cases[name] = door
    return cases


def _of_table(text: str) -> Iterator[Door]:
    bases: dict[str, list[str]] = {}
    for part in text.split("=== ")[1:]:
        head, *lines = part.rstrip("\n").split("\n")
        kind, _, name = head.partition(" ")
        if kind == "base":
            bases[name] = lines
        else:
            yield _door(name, lines, bases)


def _door(name: str, lines: list[str], bases: dict[str, list[str]]) -> Door:
    door, starts = Door(name=name), [place for place, line in enumerate(lines) if line.startswith("--- ")]
    for line in lines[: starts[0]]:
        key, _, value = line.partition(" ")
        if key == "expect":
            door.expect |= dict(word.split("=") for word in value.split())
        elif key in ("says", "silent"):
            getattr(door, key).append(value)
        else:
            read = {"seq": int(value) if value.isdigit() else 0, "arguments": tuple(value.split())}
            setattr(door, key, read.get(key, value))
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        file, _, base = lines[start].removeprefix("--- ").partition(" from ")
        body = lines[start + 1 : end]
        door.files[file] = "\n".join(_changed(bases[base], body) if base else body) + "\n"
    return door


def _changed(base: list[str], changes: list[str]) -> list[str]:
    lines, place = list(base), -1
    for line in changes:
        start, end = 0, len(lines)
        if match := SECTION.fullmatch(line):
            start = lines.index(f"{match[1]}:") + 1
            end = next((i for i in range(start, len(lines)) if not lines[i].startswith(" ")), len(lines))
            line = f"  {match[2]}"
        taken = line.startswith("- ") and ":" not in line
        key = f"{line[2:]}:" if taken else (match[0] if (match := KEY.match(line)) else None)
        at = next((i for i in range(start, end) if key is not None and lines[i].startswith(key)), None)
        if taken:
            assert at is not None, line
            del lines[at : next((i for i in range(at + 1, end) if not lines[i].startswith(" ")), end)]
        elif at is not None:
            lines[at], place = line, at
        else:
            place = start if start else place + 1 if place >= 0 else end
            lines.insert(place, line)
    return lines


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
    reads_right(DOORS[name], tmp_path)


def reads_right(door: Door, folder: Path) -> None:
    """Hold what is read of a case against what its table says."""
    options: dict[str, Any] = {
        "cluster": load_cluster(door.cluster),
        "model": load_model(door.model) if door.model else None,
        "seq_len": door.seq,
        "arguments": door.arguments,
    }
    path = written(door, folder)
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


def _first_file(door: Door) -> tuple[str, str]:
    return next(iter(door.files.items()))


@pytest.mark.parametrize("name", [name for name, door in DOORS.items() if FILE_OPTION.search(_first_file(door)[1])])
def test_a_file_is_named_behind_an_equals_sign_too(name: str, tmp_path: Path) -> None:
    """`--config=x.yaml` and `--config x.yaml` are the same to every parser."""
    door = DOORS[name]
    script, text = _first_file(door)
    reads_right(replace(door, files={**door.files, script: FILE_OPTION.sub(r"\1=\2", text)}), tmp_path)
