"""Appends a row for each search of benchmarks/mixed.py to benchmarks/history/searches.csv: one commit after another.

.venv/bin/python benchmarks/history.py [NAME ...]

A commit whose working tree is not clean has a `+` behind it. Seconds are of processor time and compare on one machine.
"""

from __future__ import annotations

import csv
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from mixed import CASES, in_a_process

HISTORY = Path(__file__).parent / "history" / "searches.csv"
COLUMNS = ("commit", "date", "machine", "case", "seconds", "peak_mib", "gap", "step_seconds")
USUAL = ("sailor-512", "three-128", "three-1024")


def main(names: list[str]) -> None:
    """Run the cases, `USUAL` ones unless some are named, and append their figures."""
    commit, date, machine = _commit(), datetime.now(UTC).date().isoformat(), platform.processor() or platform.machine()
    HISTORY.parent.mkdir(exist_ok=True)
    new = not HISTORY.exists()
    with HISTORY.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        for case in CASES:
            if case.name in (names or USUAL):
                found = in_a_process(case)
                figures = [f"{found.seconds:.3f}", f"{found.peak_mib:.0f}"]
                figures += [f"{found.gap:.5f}", f"{found.step_seconds:.9g}"]
                writer.writerow((commit, date, machine, case.name, *figures))
                print(case.name, *figures, flush=True)


def _commit() -> str:
    commit, changes = (
        subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
        for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    )
    return commit + ("+" if changes else "")


if __name__ == "__main__":
    main(sys.argv[1:])
