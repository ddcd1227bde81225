"""Prices of machines: those of the catalogue, those that a user wrote down, and the table in force."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from shardwright.errors import Problem, SpecError, bad, reject, suggestion
from shardwright.files import shipped_table
from shardwright.records import record
from shardwright.spec.catalog.gpus import CATALOG, find_gpu, resolve_gpu
from shardwright.spec.cluster import Price
from shardwright.spec.text.fields import shown
from shardwright.spec.text.reading import read_text
from shardwright.units import GIBIBYTE

CHEAPEST_GPU_HOUR, DEAREST_GPU_HOUR = 0.05, 50.0
# fmt: off
PRICE_COLUMNS = (
    "provider", "region", "machine", "gpu", "gpus", "vcpus", "host_memory_gib", "on_demand_per_hour",
    "spot_per_hour", "source", "date", "note", "force",
)
# fmt: on


@record
class MachinePrice:
    """What one machine of a provider costs in one region."""

    provider: str
    region: str
    machine: str
    gpu: str
    gpus: int
    price: Price
    vcpus: int | None = None
    host_memory_bytes: float | None = None
    note: str = ""


@cache
def _shipped(gpu: str | None = None) -> tuple[MachinePrice, ...]:
    """Return the catalogue's prices, of one GPU in a tenth of the time of all."""
    rows = shipped_table(CATALOG, "prices.csv")
    return tuple(machine_price(row) for row in rows if gpu in (None, row["gpu"]))


def prices(gpu: str | None = None, provider: str | None = None, region: str | None = None) -> tuple[MachinePrice, ...]:
    """Return the catalogue's prices, narrowed to a GPU (name or alias), a provider and a region.

    Raises SpecError for a GPU, provider or region that the catalogue does not know.
    """
    name = None if gpu is None else find_gpu(gpu).name
    return select_prices(_shipped(name), provider=provider, region=region)


def select_prices(
    rows: Sequence[MachinePrice], *, gpu: str | None = None, provider: str | None = None, region: str | None = None
) -> tuple[MachinePrice, ...]:
    """Return the rows of a GPU, a provider and a region; raises SpecError where one of them is unknown."""
    if gpu is not None:
        name = find_gpu(gpu).name
        rows = [row for row in rows if row.gpu == name]
    if provider is not None:
        known = {row.provider for row in _shipped()} | {row.provider for row in rows}
        if provider.casefold() not in {name.casefold() for name in known}:
            raise bad("provider", f"no prices of provider {shown(provider)}", suggestion(provider, known))
        rows = [row for row in rows if row.provider.casefold() == provider.casefold()]
    if region is not None:
        known = {row.region for row in _shipped()} | {row.region for row in rows}
        if region.casefold() not in {name.casefold() for name in known}:
            raise bad("region", f"no prices in region {shown(region)}", suggestion(region, known))
        rows = [row for row in rows if row.region.casefold() == region.casefold()]
    return tuple(rows)


def machine_price(row: Mapping[str, str]) -> MachinePrice:
    """Return a row of a price table, in which blank cells say nothing."""
    price = Price(
        on_demand_per_hour=_optional(row, "on_demand_per_hour"),
        spot_per_hour=_optional(row, "spot_per_hour"),
        source=row["source"],
        date=row["date"],
    )
    memory_gib = _optional(row, "host_memory_gib")
    return MachinePrice(
        provider=row["provider"],
        region=row["region"],
        machine=row["machine"],
        gpu=row["gpu"],
        gpus=int(row["gpus"]),
        price=price,
        vcpus=int(row["vcpus"]) if row.get("vcpus") else None,
        host_memory_bytes=None if memory_gib is None else memory_gib * GIBIBYTE,
        note=row.get("note") or "",
    )


def _optional(row: Mapping[str, str], column: str) -> float | None:
    text = (row.get(column) or "").strip()
    return float(text) if text else None


def load_prices(path: Path, *, force: bool = False) -> tuple[MachinePrice, ...]:
    """Return the prices of a user's CSV file with the columns of `data/prices.csv`.

    `gpu`, `gpus` and one of the two prices are needed, the rest may be missing. Raises SpecError with every problem.
    A price below $0.05 or above $50 per GPU and hour is one, unless `force` or the row's `force` column says yes.
    """
    lines = csv.DictReader(read_text(path).splitlines(), strict=True)
    try:
        rows = [dict(row) for row in lines]
        columns = lines.fieldnames or ()
    except csv.Error as error:
        raise bad(f"{path}: line {lines.line_num}", f"not valid CSV: {error}", "mend the line") from None
    problems = [
        Problem(f"{path}: line 1", f"unknown column {shown(column)}", suggestion(column, PRICE_COLUMNS))
        for column in columns
        if column not in PRICE_COLUMNS
    ]
    problems += [
        Problem(f"{path}: line 1", f"the column {column} is missing", f"columns: {', '.join(PRICE_COLUMNS)}")
        for column in ("gpu", "gpus")
        if column not in columns
    ]
    reject(problems)
    prices = [_user_price(row, f"{path}: row {number}", problems, force) for number, row in enumerate(rows, start=1)]
    reject(problems)
    return tuple(price for price in prices if price is not None)


def _user_price(
    row: Mapping[str | None, str | list[str] | None], place: str, problems: list[Problem], force: bool
) -> MachinePrice | None:
    """Return the price of a row that a user wrote, or None after adding its problems."""
    before = len(problems)
    cells = {column: str(row.get(column) or "").strip() for column in PRICE_COLUMNS}
    if None in row or any(value is None for value in row.values()):
        problems.append(Problem(place, "has more or fewer cells than the header", "check commas and quotes"))
        return None
    try:
        cells["gpu"] = resolve_gpu(cells["gpu"], f"{place}: gpu")[0].name
    except SpecError as error:
        problems += error.problems
    if not re.fullmatch(r"[1-9][0-9]{0,3}", cells["gpus"]):
        problems.append(Problem(f"{place}: gpus", f"expected a whole number, got {shown(cells['gpus'])}", "1 to 9999"))
    for column in ("vcpus", "host_memory_gib"):
        if cells[column] and not re.fullmatch(r"[0-9]{1,9}", cells[column]):
            message = f"expected a whole number, got {shown(cells[column])}"
            problems.append(Problem(f"{place}: {column}", message, "write a whole number or leave it blank"))
    if len(problems) == before:
        forced = force or cells["force"].casefold() in ("yes", "true", "1")
        problems += _price_problems(cells, place, int(cells["gpus"]), forced)
    if len(problems) > before:
        return None
    return machine_price({**cells, "source": cells["source"] or "user", "date": cells["date"] or "undated"})


def _price_problems(cells: Mapping[str, str], place: str, gpu_count: int, forced: bool) -> Iterable[Problem]:
    columns = ("on_demand_per_hour", "spot_per_hour")
    if not any(cells[column] for column in columns):
        yield Problem(place, "has no price", f"fill {columns[0]} or {columns[1]}")
    for column in columns:
        if not cells[column]:
            continue
        try:
            dollars = float(cells[column])
        except ValueError:
            dollars = math.nan
        if not math.isfinite(dollars) or dollars <= 0:
            message = f"expected a price above zero, got {shown(cells[column])}"
            yield Problem(f"{place}: {column}", message, "US dollars per hour of the whole machine, without a sign")
        elif not forced and not CHEAPEST_GPU_HOUR <= dollars / gpu_count <= DEAREST_GPU_HOUR:
            message = f"${dollars / gpu_count:.4g} per GPU and hour is not plausible"
            yield Problem(f"{place}: {column}", message, "check gpus and the unit, or put yes in a column named force")


def refreshed_path() -> Path:
    """Return where fetched prices are kept, in the user's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "shardwright" / "prices.csv"


def table_prices(
    *,
    gpu: str | None = None,
    provider: str | None = None,
    region: str | None = None,
    user_prices: Sequence[MachinePrice] = (),
) -> tuple[MachinePrice, ...]:
    """Return the rows of a GPU, a provider and a region, `user_prices` before those of the table. Raises SpecError for
    what no row has, and for a table of fetched prices that cannot be read."""
    return select_prices([*user_prices, *_table(gpu)], gpu=gpu, provider=provider, region=region)


def table_date() -> str:
    """Return in words how old the table in force is."""
    if refreshed_path().exists():
        return f"the table fetched on {max(row.price.date for row in _table())}"
    commits = {row.price.source for row in prices()}
    return f"the table that ships, of {len(commits)} commits of its sources (`date` names each row's)"


def _table(gpu: str | None = None) -> tuple[MachinePrice, ...]:
    path = refreshed_path()
    return load_prices(path) if path.exists() else prices(gpu)
