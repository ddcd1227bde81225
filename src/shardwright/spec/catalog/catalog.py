"""The catalogue: GPUs, links, machine types and prices, read from the data files beside this module.

Columns and sources are described in `data/README.md`. Files are read on first use and kept.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from shardwright.errors import Problem, SpecError, bad, suggestion
from shardwright.files import shipped_table
from shardwright.spec.cluster import Gpu, Price
from shardwright.spec.text.fields import shown
from shardwright.spec.text.reading import read_text
from shardwright.units import GIBIBYTE, GIGA, MEGA, TERA

DATA = Path(__file__).with_name("data")
MEBIBYTE = 1024.0**2
GBIT_BYTES = GIGA / 8
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
BRANDS = ("nvidia", "amd", "intel", "habana", "tesla", "geforce", "quadro", "instinct")
CHEAPEST_GPU_HOUR, DEAREST_GPU_HOUR = 0.05, 50.0
# fmt: off
PRICE_COLUMNS = (
    "provider", "region", "machine", "gpu", "gpus", "vcpus", "host_memory_gib", "on_demand_per_hour",
    "spot_per_hour", "source", "date", "note", "force",
)
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A generation of links. `scope` is intra (one GPU's total), inter (one network port) or site (between sites).

    `bytes_per_second` counts one direction; `latency_seconds` is the time of one step of a ring.
    """

    name: str
    scope: str
    bytes_per_second: float
    latency_seconds: float
    egress_dollars_per_gigabyte: float
    source: str
    date: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """A machine that is sold or rented as one. None stands for what its source does not say.

    `network_bytes_per_second` is the whole machine's, in one direction; `network` names the kind (a `Link`);
    `nic_per_gpu` says whether each GPU has a network port of its own. `reference_for` lists the GPUs for which
    this machine stands in where a cluster does not describe its machines.
    """

    name: str
    provider: str
    gpu: str
    gpus: int
    network: str | None
    network_bytes_per_second: float | None
    nic_per_gpu: bool
    host_memory_bytes: float | None
    host_memory_bytes_per_second: float | None
    vcpus: int | None
    reference_for: tuple[str, ...]
    source: str
    date: str


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


def _rows(name: str) -> Iterator[dict[str, str]]:
    yield from shipped_table("shardwright.spec.catalog", name)


def _gpu(row: Mapping[str, str]) -> Gpu:
    driver_bytes = float(row["memory_mib"]) * MEBIBYTE if row["memory_mib"] else float(row["memory_gb"]) * GIGA
    peaks = ((precision, row[f"{precision}_tflops"]) for precision in PRECISIONS)
    return Gpu(
        name=row["name"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        compute_capability=row["compute_capability"],
        multiprocessors=int(row["multiprocessors"]),
        clock_hertz=float(row["clock_mhz"]) * MEGA,
        peak_flops=tuple((precision, float(peak) * TERA) for precision, peak in peaks if peak),
        memory_bytes=driver_bytes,
        memory_bytes_per_second=float(row["memory_gb_per_second"]) * GIGA,
        l2_bytes=float(row["l2_mib"]) * MEBIBYTE,
        link=row["link"],
        link_bytes_per_second=float(row["link_gb_per_second"]) * GIGA,
        link_domain=int(row["link_domain"]),
        pcie_bytes_per_second=float(row["pcie_gb_per_second"]) * GIGA,
        tdp_watts=float(row["tdp_watts"]),
        source=row["source"],
        date=row["date"],
    )


@cache
def gpus() -> Mapping[str, Gpu]:
    """Return the GPUs of the catalogue by name."""
    return MappingProxyType({row["name"]: _gpu(row) for row in _rows("gpus.csv")})


@cache
def sold_memory_bytes() -> Mapping[str, float]:
    """Return, by GPU name, the memory size that the GPU is sold with (its "80 GB"), taken as GiB."""
    return MappingProxyType({row["name"]: float(row["memory_gb"]) * GIBIBYTE for row in _rows("gpus.csv")})


def _folded(name: str) -> str:
    """Return `name` without case, brand, separators and a final "GB"."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.casefold()) if word and word not in BRANDS]
    return re.sub(r"(?<=[0-9])gb(?=$|[a-z])", "", "".join(words))


@cache
def _gpu_names() -> Mapping[str, tuple[str, str]]:
    """Return GPU name and reading (why an ambiguous name means this one, or "") by folded name or alias."""
    names = {_folded(row["alias"]): (row["gpu"], row["reading"]) for row in _rows("aliases.csv")}
    return MappingProxyType(names | {_folded(name): (name, "") for name in gpus()})


def resolve_gpu(name: str, path: str = "gpu") -> tuple[Gpu, str]:
    """Return the GPU that `name` (or an alias) stands for, and how an ambiguous name was read ("" if it was not).

    Raises SpecError, placed at `path`, with the nearest names where there is no such GPU.
    """
    found = _gpu_names().get(_folded(name))
    if found is None:
        hint = (
            suggestion(name, [*gpus(), *(row["alias"] for row in _rows("aliases.csv"))])
            + " `shardwright gpus` lists all"
        )
        raise bad(path, f"unknown GPU {shown(name)}", hint)
    return gpus()[found[0]], found[1]


def find_gpu(name: str) -> Gpu:
    """Return the GPU that `name` or an alias of it stands for; raises SpecError with near names."""
    return resolve_gpu(name)[0]


@cache
def links() -> Mapping[str, Link]:
    """Return the kinds of links by name."""
    return MappingProxyType(
        {
            row["name"]: Link(
                name=row["name"],
                scope=row["scope"],
                bytes_per_second=float(row["gb_per_second"]) * GIGA,
                latency_seconds=float(row["latency_microseconds"]) * 1e-6,
                egress_dollars_per_gigabyte=float(row["egress_dollars_per_gb"] or 0.0),
                source=row["source"],
                date=row["date"],
                note=row["note"],
            )
            for row in _rows("links.csv")
        }
    )


def _machine(row: Mapping[str, str]) -> MachineType:
    nics, gpus_per_machine = int(row["nics"]), int(row["gpus"])
    return MachineType(
        name=row["name"],
        provider=row["provider"],
        gpu=row["gpu"],
        gpus=gpus_per_machine,
        network=row["network"],
        network_bytes_per_second=nics * float(row["gbps_per_nic"]) * GBIT_BYTES,
        nic_per_gpu=nics >= gpus_per_machine,
        host_memory_bytes=float(row["host_memory_gib"]) * GIBIBYTE,
        host_memory_bytes_per_second=float(row["host_memory_gb_per_second"]) * GIGA,
        vcpus=int(row["vcpus"]),
        reference_for=tuple(row["reference_for"].split(";")) if row["reference_for"] else (),
        source=row["source"],
        date=row["date"],
    )


@cache
def machines() -> Mapping[str, MachineType]:
    """Return the machine types whose network is known, by name."""
    return MappingProxyType({row["name"]: _machine(row) for row in _rows("machines.csv")})


@cache
def reference_machines() -> Mapping[str, MachineType]:
    """Return, by GPU name, the machine that stands in where a cluster does not describe its own."""
    return MappingProxyType({gpu: machine for machine in machines().values() for gpu in machine.reference_for})


@cache
def _priced_machines() -> Mapping[str, MachineType]:
    """Return the machine types that only the price list knows, which says nothing of their network."""
    return MappingProxyType(
        {
            row.machine: MachineType(
                name=row.machine,
                provider=row.provider,
                gpu=row.gpu,
                gpus=row.gpus,
                network=None,
                network_bytes_per_second=None,
                nic_per_gpu=False,
                host_memory_bytes=row.host_memory_bytes,
                host_memory_bytes_per_second=None,
                vcpus=row.vcpus,
                reference_for=(),
                source=row.price.source,
                date=row.price.date,
            )
            for row in prices()
            if row.machine not in machines()
        }
    )


def find_machine(name: str, path: str = "machine") -> MachineType:
    """Return the machine type called `name`; raises SpecError, placed at `path`, with near names."""
    every = {**_priced_machines(), **machines()}
    by_folded = {known.casefold(): machine for known, machine in every.items()}
    if name.casefold() not in by_folded:
        raise bad(path, f"unknown machine type {shown(name)}", suggestion(name, every) + " or give gpu and gpus")
    return by_folded[name.casefold()]


@cache
def _all_prices() -> tuple[MachinePrice, ...]:
    return tuple(_machine_price(row) for row in _rows("prices.csv"))


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


def _machine_price(row: Mapping[str, str]) -> MachinePrice:
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
    if problems:
        raise SpecError(*problems)
    found = [_user_price(row, f"{path}: row {number}", problems, force) for number, row in enumerate(rows, start=1)]
    if problems:
        raise SpecError(*problems)
    return tuple(price for price in found if price is not None)


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
    return _machine_price({**cells, "source": cells["source"] or "user", "date": cells["date"] or "undated"})


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
