"""Fits every family of operators, and the links, to the files of a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from tools.refit.collective_rows import Series
from tools.refit.collectives import fit_collectives
from tools.refit.operators import FitTable, fit, table
from tools.refit.rows import read_operators
from tools.refit.sampling import sample

from shardwright.cost.learned.fitted import pack
from shardwright.cost.learned.links import LinkFit, LinkFits, NetworkFit

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


def links_csv(fits: LinkFits) -> bytes:
    """Return the content of links.csv."""
    names = [field.name for field in fields(LinkFit)]
    return _csv(
        ("kind", "architecture", *names), (((*key, *_numbers(fit, names))) for key, fit in sorted(fits.items()))
    )


def network_csv(fit: NetworkFit) -> bytes:
    """Return the content of network.csv."""
    names = [field.name for field in fields(NetworkFit)]
    return _csv(names, [_numbers(fit, names)])


def _numbers(fit: LinkFit | NetworkFit, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{getattr(fit, name):.4g}" for name in names)


def _csv(header: Iterable[str], rows: Iterable[Iterable[str]]) -> bytes:
    return "".join(",".join(row) + "\n" for row in (header, *rows)).encode()
