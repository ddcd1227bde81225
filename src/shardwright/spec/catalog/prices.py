"""Prices of machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from shardwright.errors import bad, suggestion
from shardwright.files import shipped_table
from shardwright.spec.catalog.gpus import CATALOG, find_gpu
from shardwright.spec.cluster import Price
from shardwright.spec.text.fields import shown
from shardwright.units import GIBIBYTE


@dataclass(frozen=True, slots=True, kw_only=True)
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
def _all_prices() -> tuple[MachinePrice, ...]:
    return tuple(machine_price(row) for row in shipped_table(CATALOG, "prices.csv"))


def prices(gpu: str | None = None, provider: str | None = None, region: str | None = None) -> tuple[MachinePrice, ...]:
    """Return the catalogue's prices, narrowed to a GPU (name or alias), a provider and a region.

    Raises SpecError for a GPU, provider or region that the catalogue does not know.
    """
    return select_prices(_all_prices(), gpu=gpu, provider=provider, region=region)


def select_prices(
    rows: Sequence[MachinePrice], *, gpu: str | None = None, provider: str | None = None, region: str | None = None
) -> tuple[MachinePrice, ...]:
    """Return the rows of a GPU, a provider and a region; raises SpecError where one of them is unknown."""
    if gpu is not None:
        name = find_gpu(gpu).name
        rows = [row for row in rows if row.gpu == name]
    if provider is not None:
        known = {row.provider for row in _all_prices()} | {row.provider for row in rows}
        if provider.casefold() not in {name.casefold() for name in known}:
            raise bad("provider", f"no prices of provider {shown(provider)}", suggestion(provider, known))
        rows = [row for row in rows if row.provider.casefold() == provider.casefold()]
    if region is not None:
        known = {row.region for row in _all_prices()} | {row.region for row in rows}
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
