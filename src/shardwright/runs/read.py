"""`read_run`: a run from a file of any kind."""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import bad
from shardwright.runs.event_files import read_event_file
from shardwright.runs.logs import read_log
from shardwright.runs.run import MeasuredRun, RunSetting
from shardwright.runs.tables import read_table

TABLES = (".csv",)
METRICS = "metrics.csv"  # in the folder of a run of `shardwright train`


def read_run(
    path: Path | str, *, global_batch: int | None = None, seq_len: int | None = None, gpus: int | None = None
) -> MeasuredRun:
    """Return the run that a file tells of: the log of a trainer (`.gz` too), an event file of TensorBoard or a folder
    of them, a result log of MLPerf, a CSV file with a row a step (columns as in `tables.COLUMNS`), or the folder of a
    run of `shardwright train`.

    `global_batch` (samples), `seq_len` (tokens of a sample) and `gpus` are those of the launch, for files that report
    rates alone and do not say them. Raises SpecError for a file that is no such thing, and names the line of what is
    malformed. Logs of any length take bounded memory: one line at a time, and about 100 bytes a step.
    """
    path, given = Path(path), RunSetting(global_batch=global_batch, seq_len=seq_len, gpus=gpus)
    if path.is_dir():
        if (path / METRICS).is_file():
            return read_table(path / METRICS, given)
        if any(path.rglob("*tfevents*")):
            return read_event_file(path, given)
        raise bad(str(path), "is a folder without metrics.csv and without event files", "name the log inside it")
    if not path.is_file():
        raise bad(str(path), "no such file", "check the path")
    if "tfevents" in path.name:
        return read_event_file(path, given)
    if path.suffix.casefold() in TABLES:
        return read_table(path, given)
    return read_log(path, given)
