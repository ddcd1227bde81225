"""Prices of today from the public catalogues that gpuhunt collects (https://github.com/dstackai/gpuhunt).

gpuhunt is an optional dependency, imported here alone and only when prices are fetched.
"""

from __future__ import annotations

import csv
import io
import logging
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardwright.errors import SpecError, bad
from shardwright.files import write_atomically
from shardwright.records import record
from shardwright.spec.catalog.gpus import resolve_gpu, sold_memory_bytes
from shardwright.spec.catalog.prices import CHEAPEST_GPU_HOUR, DEAREST_GPU_HOUR, PRICE_COLUMNS, MachinePrice
from shardwright.spec.cluster import Price
from shardwright.units import GIBIBYTE

PATIENCE_SECONDS = 20.0
MEMORY_TOLERANCE = 0.15  # catalogues give a GPU's memory as sold, or as its driver reports it


Key = tuple[str, str, str, str, int]  # provider, region, machine, GPU, GPUs


class UnreachableError(Exception):
    """No catalogue could be fetched."""


@record
class FetchedPrices:
    """Prices by provider, region and machine, and how many catalogue items were left out."""

    rows: tuple[MachinePrice, ...]
    left_out: int


def fetch(date: str) -> FetchedPrices:
    """Return what machines with GPUs cost on `date` (today). Raises SpecError where gpuhunt is not installed, and
    UnreachableError where no catalogue can be fetched."""
    try:
        import gpuhunt
    except ImportError:
        raise bad("`refresh=`", "needs the package gpuhunt", "pip install 'shardwright[prices]'") from None
    try:
        with _patient():
            catalog = gpuhunt.Catalog(balance_resources=False, auto_reload=False)
            catalog.load()
            items = catalog.query(min_gpu_count=1)
    except Exception as error:
        # Whatever gpuhunt, urllib or a broken archive raises, there is nothing to go by.
        raise UnreachableError(str(error) or type(error).__name__) from None
    fetched = from_items(items, date, "gpuhunt, the public catalogue of its provider")
    if not fetched.rows:
        raise UnreachableError("the catalogues have no machine with a known GPU")
    return fetched


@contextmanager
def _patient() -> Iterator[None]:
    """Wait `PATIENCE_SECONDS` for an answer, and keep gpuhunt's own account of what fails off the terminal."""
    logger, quiet, before = logging.getLogger("gpuhunt"), logging.NullHandler(), socket.getdefaulttimeout()
    logger.addHandler(quiet)
    socket.setdefaulttimeout(PATIENCE_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
        logger.removeHandler(quiet)


def from_items(items: Iterable[Any], date: str, source: str) -> FetchedPrices:
    """Return catalogue items (`provider`, `instance_name`, `location`, `price`, `cpu`, `memory`, `gpu_count`,
    `gpu_name`, `gpu_memory`, `spot`) as prices. On-demand and spot items of one machine and region make one row, of
    several the cheapest each. What names no GPU of the catalogue or is not plausibly priced is left out."""
    cheapest: dict[Key, dict[bool, float]] = {}
    facts: dict[Key, tuple[int, float, str]] = {}
    left_out = 0
    for item in items:
        gpu, reading = _gpu_name(item.gpu_name, item.gpu_memory)
        plausible = item.gpu_count and CHEAPEST_GPU_HOUR <= item.price / item.gpu_count <= DEAREST_GPU_HOUR
        if gpu is None or not plausible:
            left_out += 1
            continue
        key = (item.provider, item.location, item.instance_name, gpu, int(item.gpu_count))
        of_market = cheapest.setdefault(key, {})
        of_market[bool(item.spot)] = min(of_market.get(bool(item.spot), item.price), item.price)
        facts[key] = (int(item.cpu or 0), float(item.memory or 0.0), reading)
    rows = tuple(_row(key, cheapest[key], *facts[key], date, source) for key in sorted(cheapest))
    return FetchedPrices(rows=rows, left_out=left_out)


def _row(
    key: Key, dollars: dict[bool, float], cpus: int, memory_gib: float, note: str, date: str, source: str
) -> MachinePrice:
    provider, region, machine, gpu, gpus = key
    return MachinePrice(
        provider=provider,
        region=region,
        machine=machine,
        gpu=gpu,
        gpus=gpus,
        price=Price(on_demand_per_hour=dollars.get(False), spot_per_hour=dollars.get(True), source=source, date=date),
        vcpus=cpus or None,
        host_memory_bytes=memory_gib * GIBIBYTE if memory_gib else None,
        note=note,
    )


def _gpu_name(name: str | None, memory_gb: float | None) -> tuple[str | None, str]:
    """Return the catalogue's name of a GPU (None if it has none), and how a name for several parts was read; sizes are
    told apart by memory."""
    words = [] if not name else [name] if not memory_gb else [f"{name}-{memory_gb:.0f}", name]
    for word in words:
        try:
            gpu, reading = resolve_gpu(word)
        except SpecError:
            continue
        sold = sold_memory_bytes()[gpu.name] / GIBIBYTE
        if not memory_gb or abs(memory_gb - sold) <= MEMORY_TOLERANCE * sold:
            return gpu.name, reading
    return None, ""


def keep(rows: Sequence[MachinePrice], path: Path) -> None:
    """Write prices as a price table to `path`, whole or not at all. Raises SpecError where that fails."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [column for column in PRICE_COLUMNS if column != "force"]
    writer.writerow(columns)
    for row in rows:
        price, memory = row.price, row.host_memory_bytes
        cells = (row.provider, row.region, row.machine, row.gpu, row.gpus, row.vcpus,
                 None if memory is None else round(memory / GIBIBYTE), price.on_demand_per_hour, price.spot_per_hour,
                 price.source, price.date, row.note)  # fmt: skip
        writer.writerow(["" if cell is None else cell for cell in cells])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise bad(str(path.parent), f"cannot be made: {error.strerror or error}", "check the cache folder") from None
    write_atomically(path, text.getvalue())
