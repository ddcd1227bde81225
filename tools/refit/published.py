"""`python -m tools.refit published`: the tables of published runs that ship, from larger ones.

Runs of quality A and B are kept, and failed runs: facts only, each with its source, and of their notes the phrases that
are understood. Equal tables give equal bytes.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import shardwright.validation
from shardwright.commands import argument, option
from shardwright.errors import bad
from shardwright.validation.case import CONTRADICTS, case_of
from shardwright.validation.facts import SkippedRunError
from shardwright.validation.runs import (
    BLOCK,
    COLUMNS,
    FAILED_FILE,
    MACHINES,
    PSEUDO_LAYERS,
    RUNS_FILE,
    SAID,
    SPECIAL,
    PublishedRun,
    read_runs,
)

DATA = Path(shardwright.validation.__file__).parent / "data"
KEPT_QUALITIES = ("A", "B", "")
# Megatron-LM names its functional tests by suite, model and degrees.
TEST_CASE = re.compile(r"\w+:(?P<model>\w+?)_tp\d+\w*")
TESTED = {"gpt3_7b": "GPT-3-7B", "mimo_vlm_pretrain_convergence": "MIMO-VLM"}
# Every phrase that the table of published runs keeps, with the words to keep of it ("": as found).
PHRASES: tuple[tuple[str, str], ...] = (
    *((pattern, "") for pattern in (SAID["optimizer_offload"], SPECIAL, SAID["first_dense"], MACHINES, PSEUDO_LAYERS)),
    (r"\blora\b", "LoRA"),
    (SAID["attention_adapters"], ""),
    (SAID["fused_loss"], "Liger"),
    (r"per-op sac", "per-op SAC"),
    (r"recompute_modules=[^;]+", ""),
    (BLOCK, ""),
    (r"\betp=[0-9]+", ""),
    (r"pp_layout=[^; ]+", ""),
    (r"MTP layers [0-9]+", ""),
    (r"reshard_after_forward=False", ""),
    *((SAID[name], "") for name in ("few_steps", "rounded", "flagged")),
)


def published(
    runs: Annotated[Path, argument(metavar="RUNS.csv", help="Runs that ran.")],
    failed: Annotated[Path, argument(metavar="FAILED.csv", help="Runs that failed.")],
    out: Annotated[
        Path, option("--out", "-o", metavar="DIR", help="Where to write; default: the data of this package.")
    ] = DATA,
) -> None:
    """Write the tables of published runs that ship."""
    from shardwright.files import write_atomically

    out.mkdir(exist_ok=True)
    for name, source in ((RUNS_FILE, runs), (FAILED_FILE, failed)):
        packed = gzip.compress(table(checked(read_runs(source))).encode("utf-8"), mtime=0)
        write_atomically(out / name, packed)


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


def phrases(text: str) -> str:
    """Return the phrases of notes that are kept, each once, in the order of `PHRASES`."""
    matches: list[str] = []
    for pattern, words in PHRASES:
        matches += [words or match[0].strip() for match in re.finditer(pattern, text, re.IGNORECASE)]
    return "; ".join(dict.fromkeys(matches))
