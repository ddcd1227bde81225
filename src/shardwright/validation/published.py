"""The table of published runs that ships with the package: facts with their sources, and how it is made.

    python -m shardwright.validation.published RUNS.csv FAILED.csv

reads larger tables (columns: docs/how-to-validate.md) and keeps runs of quality A and B, failed runs, and of their
notes the phrases of `notes`.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from shardwright.errors import SpecError, bad
from shardwright.files import shipped_file, write_atomically
from shardwright.validation.case import CONTRADICTS, case_of
from shardwright.validation.facts import SkippedRunError
from shardwright.validation.runs import COLUMNS, PublishedRun, parse_runs, phrases, read_runs

RUNS_FILE, FAILED_FILE = "published.csv.gz", "published_failed.csv.gz"
KEPT_QUALITIES = ("A", "B", "")
# Megatron-LM names its functional tests by suite, model and degrees.
TEST_CASE = re.compile(r"\w+:(?P<model>\w+?)_tp\d+\w*")
TESTED = {"gpt3_7b": "GPT-3-7B", "mimo_vlm_pretrain_convergence": "MIMO-VLM"}


@lru_cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Return the published runs that ship with the package."""
    return _shipped(RUNS_FILE)


@lru_cache
def published_failed_runs() -> tuple[PublishedRun, ...]:
    """Return the configurations that were published as failed."""
    return _shipped(FAILED_FILE)


def _shipped(name: str) -> tuple[PublishedRun, ...]:
    return parse_runs(shipped_file("shardwright.validation", name).decode("utf-8"), name)


def table(runs: Iterable[PublishedRun]) -> str:
    """Return the runs that are kept as CSV text. Raises SpecError for one without a source."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        if run.quality not in KEPT_QUALITIES:
            continue
        if "@" not in run.source_file:
            raise bad(f"run {run.row_id}", "has no source", "give repository@commit:path in source_file")
        cells = {name: _cell(getattr(run, name)) for name in COLUMNS}
        cells |= {"model": model_name(run.model), "notes": phrases(run.notes)}
        cells |= {"source_file": re.sub(r"^([^+/@]+)\+", r"\1/", run.source_file)}
        writer.writerow([cells[name] for name in COLUMNS])
    return out.getvalue()


def checked(runs: Iterable[PublishedRun]) -> Iterable[PublishedRun]:
    """Yield runs. Raises SpecError at one that contradicts itself, naming it."""
    for run in runs:
        try:
            case_of(run)
        except SkippedRunError as error:
            if error.skip.kind == CONTRADICTS:
                raise bad(f"run {run.row_id}", error.skip.words, "mend the row, or give it quality C") from None
        yield run


def model_name(name: str) -> str:
    """Return the name of a run's model as a person would write it, where it is that of a test case."""
    case = TEST_CASE.fullmatch(name)
    return name if case is None else TESTED.get(case["model"], case["model"].replace("_", "-"))


def _cell(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return str(int(value)) if value.is_integer() else repr(value)


def main(arguments: list[str]) -> None:
    """Write the two files of the package from the two files named."""
    if len(arguments) != 2:
        raise bad("published", "needs two files", "python -m shardwright.validation.published RUNS.csv FAILED.csv")
    folder = Path(__file__).with_name("data")
    folder.mkdir(exist_ok=True)
    for name, source in zip((RUNS_FILE, FAILED_FILE), arguments, strict=True):
        packed = gzip.compress(table(checked(read_runs(Path(source)))).encode("utf-8"), mtime=0)
        write_atomically(folder / name, packed)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SpecError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
