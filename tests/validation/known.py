"""A dozen published runs with their sources, for tests."""

from __future__ import annotations

from pathlib import Path

from shardwright.validation.runs import PublishedRun, read_runs

KNOWN = Path(__file__).with_name("known_runs.csv")


def known_runs() -> dict[str, PublishedRun]:
    """Return the runs by their identifiers."""
    return {run.row_id: run for run in read_runs(KNOWN)}
