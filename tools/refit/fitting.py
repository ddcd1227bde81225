"""Fits every family of operators, and the links, to the files of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.refit.collective_rows import Series
from tools.refit.collectives import fit_collectives
from tools.refit.operators import FitTable, fit, table
from tools.refit.rows import read_operators
from tools.refit.sampling import sample

from shardwright.cost.learned.fitted import pack
from shardwright.cost.learned.links import links_csv, network_csv

ROWS_OF_CELL = {"gemm": 3500, "attention": 15000, "memory": 3000}


def tables(folder: Path, *, share: float = 1.0) -> dict[str, FitTable]:
    """Return the rows of each family ready to fit; `share` of the usual number."""
    rows = read_operators(folder)
    return {
        family: table(family, sample(family_rows, int(share * ROWS_OF_CELL[family])))
        for family, family_rows in rows.items()
        if len(family_rows)
    }


def fitted_files(families: dict[str, FitTable], series: Sequence[Series]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every file that `cost/learned/data` has. Equal rows give equal bytes."""
    for family, rows in families.items():
        yield f"{family}.npz", pack(fit(family, rows))
    if series:
        fits = fit_collectives(series)
        yield "links.csv", links_csv(fits.links)
        yield "network.csv", network_csv(fits.network)
