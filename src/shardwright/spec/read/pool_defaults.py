"""What a group of machines gets from the catalogue where the user says nothing, each with a sentence that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.spec.catalog.catalog import (
    GBIT_BYTES,
    MachinePrice,
    MachineType,
    gpus,
    links,
    prices,
    select_prices,
    sold_memory_bytes,
)
from shardwright.spec.cluster import Gpu, Price
from shardwright.spec.read.custom_gpu import reference_machine
from shardwright.units import GIBIBYTE, GIGA, format_bytes

SLOWEST_FABRIC_GBPS = 100.0
LARGEST_CHASSIS_DOMAIN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A value and the sentence that says where it was taken from ("" where the user or the machine type says it)."""

    value: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceGuess:
    """A price, if one is known, and the sentence on its origin."""

    price: Price | None
    words: str


def gpu_memory_bytes(gpu: Gpu, memory_gb: float | None) -> Assumption:
    """Return the memory of one GPU. A stated size is as sold, in GiB; where it is the size that the catalogue has for
    this GPU or for a sister part (V100-SXM2 and V100-SXM2-16), what the driver reports of that part counts."""
    if memory_gb is None:
        return Assumption(value=gpu.memory_bytes, words="")
    stated = memory_gb * GIBIBYTE
    sold = sold_memory_bytes()
    family = gpu.name.split("-")[0]
    sisters = [gpu.name, *(name for name in sold if name.split("-")[0] == family)]
    for name in sisters:
        if sold.get(name) == stated:
            return Assumption(value=gpus()[name].memory_bytes, words="")
    return Assumption(value=stated, words=f"GPU memory: {memory_gb:g} GB taken as {format_bytes(stated)}")


def network_bytes_per_second(gpu: Gpu, gpus_per_node: int, machine: MachineType | None) -> Assumption:
    """Return the bandwidth of one machine to the network, in one direction: the machine type's, else that of the
    GPU's reference machine, in proportion to the GPUs where each has a network port of its own."""
    if machine is not None and machine.network_bytes_per_second is not None:
        return Assumption(value=machine.network_bytes_per_second, words="")
    reference = reference_machine(gpu)
    share = gpus_per_node / reference.gpus if reference.nic_per_gpu else 1.0
    value = (reference.network_bytes_per_second or 0.0) * share
    words = f"network: {value / GBIT_BYTES:g} Gbit/s a machine ({reference.network}), as in {reference.name}"
    return Assumption(value=value, words=words)


def network_latency_seconds(gpu: Gpu, machine: MachineType | None, bytes_per_second: float) -> Assumption:
    """Return the latency of one message between machines: that of the machine type's network, or of the reference
    machine's if the bandwidth is a fabric's, else that of Ethernet."""
    if machine is not None and machine.network is not None:
        return Assumption(value=links()[machine.network].latency_seconds, words="")
    fabric = bytes_per_second >= SLOWEST_FABRIC_GBPS * GBIT_BYTES
    kind = (reference_machine(gpu).network if fabric else None) or "Ethernet"
    value = links()[kind].latency_seconds
    return Assumption(value=value, words=f"network latency: {value * 1e6:g} µs ({kind})")


def host_memory_bytes(gpu: Gpu, gpus_per_node: int, machine: MachineType | None) -> Assumption:
    """Return the host memory of one machine: the machine type's, else the reference machine's share."""
    if machine is not None and machine.host_memory_bytes is not None:
        return Assumption(value=machine.host_memory_bytes, words="")
    reference = reference_machine(gpu)
    value = (reference.host_memory_bytes or 0.0) * min(1.0, gpus_per_node / reference.gpus)
    return Assumption(value=value, words=f"host memory: {format_bytes(value)} a machine, as in {reference.name}")


def host_memory_bytes_per_second(gpu: Gpu, machine: MachineType | None) -> Assumption:
    """Return the host memory bandwidth of one machine: the machine type's, else the reference machine's."""
    if machine is not None and machine.host_memory_bytes_per_second is not None:
        return Assumption(value=machine.host_memory_bytes_per_second, words="")
    reference = reference_machine(gpu)
    value = reference.host_memory_bytes_per_second or 0.0
    return Assumption(value=value, words=f"host memory bandwidth: {value / GIGA:g} GB/s, as in {reference.name}")


def domain_gpus(gpu: Gpu, nodes: int, gpus_per_node: int) -> Assumption:
    """Return how many GPUs the fast links join: one machine, or the rack where NVLink leaves the machine."""
    if gpu.link_domain <= LARGEST_CHASSIS_DOMAIN or nodes == 1:
        return Assumption(value=gpus_per_node, words="")
    machines = max(1, min(gpu.link_domain, nodes * gpus_per_node) // gpus_per_node)
    value = machines * gpus_per_node
    return Assumption(value=value, words=f"{gpu.link} domain: {value} GPUs in {machines} machines")


def catalogue_price(
    gpu: Gpu,
    gpus_per_node: int,
    machine: MachineType | None,
    *,
    provider: str | None,
    region: str | None,
    own_prices: Sequence[MachinePrice],
) -> PriceGuess:
    """Return the price of one machine per hour: the user's own rows where one applies, else the catalogue's.

    Machines of the same size go first, others count by the GPU. On-demand and spot are each the lower median over
    the rows that remain. Raises SpecError for a provider or region that no price list knows.
    """
    select_prices([*own_prices, *prices()], provider=provider, region=region)
    for offered in (own_prices, prices()):
        rows = [row for row in offered if row.gpu == gpu.name and _at(row, provider, region)]
        if machine is not None and machine.provider:
            rows = [row for row in rows if row.machine.casefold() == machine.name.casefold()]
        rows = [row for row in rows if row.gpus == gpus_per_node] or rows
        if rows:
            return _median_price(rows, gpus_per_node)
    where = " ".join(word for word in (provider, region) if word) or "any provider"
    return PriceGuess(price=None, words=f"price: none known for {gpu.name} of {where}, so plans have no cost")


def _at(row: MachinePrice, provider: str | None, region: str | None) -> bool:
    return all(
        wanted is None or wanted.casefold() == actual.casefold()
        for wanted, actual in ((provider, row.provider), (region, row.region))
    )


def _median_price(rows: Sequence[MachinePrice], gpus_per_node: int) -> PriceGuess:
    on_demand, on_demand_row = _lower_median([(row.price.on_demand_per_hour, row) for row in rows], gpus_per_node)
    spot, spot_row = _lower_median([(row.price.spot_per_hour, row) for row in rows], gpus_per_node)
    row = on_demand_row or spot_row or rows[0]
    price = Price(on_demand_per_hour=on_demand, spot_per_hour=spot, source=row.price.source, date=row.price.date)
    figures = [f"${value:.2f} {kind}" for value, kind in ((on_demand, "on demand"), (spot, "spot")) if value]
    origin = " ".join(word for word in (row.provider, row.machine, row.region) if word)
    spread = f" (middle of {len(rows)} prices)" if len(rows) > 1 else ""
    words = f"price: {', '.join(figures)} a machine and hour, from {origin}{spread}, {price.date}"
    return PriceGuess(price=price, words=words)


def _lower_median(
    offers: Sequence[tuple[float | None, MachinePrice]], gpus_per_node: int
) -> tuple[float | None, MachinePrice | None]:
    """Return the lower median price, scaled to `gpus_per_node` GPUs, and its row."""
    scaled = [(dollars / row.gpus * gpus_per_node, row) for dollars, row in offers if dollars is not None]
    if not scaled:
        return None, None
    scaled.sort(key=lambda offer: (offer[0], offer[1].provider, offer[1].region))
    return scaled[(len(scaled) - 1) // 2]
