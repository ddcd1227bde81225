"""`read_run`: a run from a file of any kind."""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import bad
from shardwright.runs.run import MeasuredRun, RunSetting
from shardwright.runs.tables import read_table


def read_run(
    path: Path | str, *, global_batch: int | None = None, seq_len: int | None = None, gpus: int | None = None
) -> MeasuredRun:
    """Return the run that a file tells of: a CSV file with a row a step (columns as in `tables.COLUMNS`).

    `global_batch` (samples), `seq_len` (tokens of a sample) and `gpus` are those of the launch, for files that report
    rates alone and do not say them. Raises SpecError for a file that is no such thing, and names the line of what is
    malformed.
    """
    path = Path(path)
    if not path.is_file():
        raise bad(str(path), "no such file", "check the path")
    return read_table(path, RunSetting(global_batch=global_batch, seq_len=seq_len, gpus=gpus))
