"""Writes docs/support.md: which trainer runs what, from the matrix and from what the trainers say of models.

.venv/bin/python docs/make_support.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shardwright.exporters.support.matrix import facts, trainers
from shardwright.files import write_atomically
from shardwright.spec.model import Model
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.read.presets import preset_model, preset_names
from shardwright.trainers.runs import family_answers, searched_trainers

NONE = "–"
PAGE = Path(__file__).with_name("support.md")
COUNTS = Path(__file__).parents[1] / "tests" / "spec" / "transformers_counts.json"
LEAD = """# Which trainer runs which model

Made by `docs/make_support.py` from `src/shardwright/exporters/support/data`. Exporters refuse what a row says no to,
`plan --framework` searches within the limits, and `shardwright support` prints the rows, with `--json` each with
release and source. "limit" is explained below; – means that the question does not arise. nanotron, jax and eager
PyTorch are known for `evaluate` and `validate` alone: nothing is exported to them.

"""
FAMILIES = """
## Families of models

Each trainer was asked about the models of `tests/spec/transformers_counts.json` and the presets, in bf16 with Adam;
limit means that it runs some of a family's models. `spmd` runs any module that PyTorch can trace.

"""


def page() -> str:
    """Return the whole page."""
    names = list(trainers())
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in facts():
        cells.setdefault((row.subject, row.value), {})[row.target] = row.runs
    versions = _table(
        ("trainer", "is", "release", "framework of `plan`"),
        ([trainer.name, trainer.title, trainer.version, trainer.framework] for trainer in trainers().values()),
    )
    limits = [
        (row.target, f"{row.subject} {row.value}", row.message, f"`{row.when}`" if row.when else "", row.source)
        for row in facts()
        if row.runs != "yes" and row.source
    ]
    parts = [LEAD, versions, "\n\n", _matrix(cells, names), "\n\n## Limits\n\n"]
    parts.append(_table(("trainer", "what", "why", "does not run where", "source"), limits))
    return "".join([*parts, "\n", FAMILIES, _families(), "\n"])


def _matrix(cells: Mapping[tuple[str, str], Mapping[str, str]], names: Sequence[str]) -> str:
    """Return the same as Markdown, a table for each subject."""
    subjects = dict.fromkeys(subject for subject, _ in cells)
    return "\n\n".join(_subject_table(subject, cells, names) for subject in subjects)


def _subject_table(subject: str, cells: Mapping[tuple[str, str], Mapping[str, str]], names: Sequence[str]) -> str:
    of_subject = ((value, answers) for (of, value), answers in cells.items() if of == subject)
    rows = [[value, *(answers.get(name, NONE) for name in names)] for value, answers in of_subject]
    return _table((subject, *names), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _models() -> list[Model]:
    rows = json.loads(COUNTS.read_text(encoding="utf-8"))["models"]
    small = [model_of_config(row["config"], "config.json") for row in rows]
    return [*small, *map(preset_model, preset_names())]


def _families() -> str:
    answers: dict[str, dict[str, str]] = {}
    for answer in family_answers(_models()):
        answers.setdefault(answer.family, {})[answer.target] = answer.runs
    names = [trainer.name for trainer in searched_trainers()]
    return _table(("family", *names), ([family, *(row[name] for name in names)] for family, row in answers.items()))


if __name__ == "__main__":
    write_atomically(PAGE, page())
