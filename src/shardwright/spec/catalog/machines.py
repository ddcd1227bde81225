"""Links and machine types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from shardwright.errors import bad, suggestion
from shardwright.files import shipped_table
from shardwright.records import record
from shardwright.spec.catalog.gpus import CATALOG
from shardwright.spec.catalog.prices import prices
from shardwright.spec.text.fields import shown
from shardwright.units import GIBIBYTE, GIGA

GBIT_BYTES = GIGA / 8


@record
class LinkKind:
    """A generation of links. `scope` is intra (one GPU's total), inter (one network port) or site (between sites).

    `bytes_per_second` counts one direction; `latency_seconds` is the time of one step of a ring. `mesh`: it joins GPUs
    pair by pair, without a switch.
    """

    name: str
    scope: str
    bytes_per_second: float
    latency_seconds: float
    egress_dollars_per_gigabyte: float
    mesh: bool
    source: str
    date: str
    note: str


@record
class MachineType:
    """A machine that is sold or rented as one. None stands for what its source does not say.

    `network_bytes_per_second` is the whole machine's, in one direction; `network` names the kind (a `LinkKind`);
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


@cache
def links() -> Mapping[str, LinkKind]:
    """Return the kinds of links by name."""
    return MappingProxyType(
        {
            row["name"]: LinkKind(
                name=row["name"],
                scope=row["scope"],
                bytes_per_second=float(row["gb_per_second"]) * GIGA,
                latency_seconds=float(row["latency_microseconds"]) * 1e-6,
                egress_dollars_per_gigabyte=float(row["egress_dollars_per_gb"] or 0.0),
                mesh=row["mesh"] == "1",
                source=row["source"],
                date=row["date"],
                note=row["note"],
            )
            for row in shipped_table(CATALOG, "links.csv")
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
    return MappingProxyType({row["name"]: _machine(row) for row in shipped_table(CATALOG, "machines.csv")})


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
