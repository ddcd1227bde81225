"""Fits every family to the files of a folder and writes what the package ships."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shardwright.calibrate.operators import Table, fit, table
from shardwright.calibrate.rows import read_operators
from shardwright.calibrate.sampling import sample
from shardwright.cost.learned.fitted import pack
from shardwright.files import write_atomically

ROWS_OF_CELL = {"gemm": 3500, "attention": 15000, "memory": 3000}


def tables(folder: Path, *, share: float = 1.0) -> dict[str, Table]:
    """Return the rows of each family ready to fit; `share` of the usual number."""
    rows = read_operators(folder)
    return {
        family: table(family, sample(found, int(share * ROWS_OF_CELL[family])))
        for family, found in rows.items()
        if len(found)
    }


def write_fits(found: dict[str, Table], folder: Path, say: Callable[[str], None]) -> None:
    """Fit each family and write it to `folder`. Equal rows give equal bytes."""
    for family, rows in found.items():
        content = pack(fit(family, rows))
        write_atomically(folder / f"{family}.npz", content)
        say(f"{family}: {len(rows.target):,} rows, {len(content):,} bytes")
