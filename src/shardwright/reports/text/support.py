"""Who runs what, on a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shardwright.reports.text.layout import WIDTH, labelled, table

Cells = Mapping[tuple[str, str], Mapping[str, str]]
NONE = "–"


def matrix_text(cells: Cells, names: Sequence[str]) -> str:
    """Return a table with a row for each subject and value, and a column for each trainer in `names`. `cells` has what
    a trainer answers, by its name."""
    rows = [[subject, value, *_answers(answers, names)] for (subject, value), answers in cells.items()]
    header = ("subject", "value", *names)
    return table(header, rows, words=header)


def matrix_markdown(cells: Cells, names: Sequence[str]) -> str:
    """Return the same as Markdown, a table for each subject."""
    subjects = dict.fromkeys(subject for subject, _ in cells)
    return "\n\n".join(_subject_table(subject, cells, names) for subject in subjects)


def _subject_table(subject: str, cells: Cells, names: Sequence[str]) -> str:
    rows = [[value, *_answers(answers, names)] for (of, value), answers in cells.items() if of == subject]
    return markdown_table((subject, *names), rows)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _answers(answers: Mapping[str, str], names: Sequence[str]) -> list[str]:
    return [answers.get(name, NONE) for name in names]


def model_support_text(name: str, answers: Mapping[str, Sequence[str]], width: int = WIDTH) -> str:
    """Return who runs a model: for each trainer, by its title, what it lacks of the model, nothing where it runs it."""
    lines = [
        labelled(trainer, "runs it" if not lacks else "does not run it: " + "; ".join(lacks), width, column=16)
        for trainer, lacks in answers.items()
    ]
    return "\n".join([name, *lines])
