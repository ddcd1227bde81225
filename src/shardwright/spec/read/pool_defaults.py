"""What a group of machines gets from the catalogue where the user says nothing, each with a sentence that says so."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.records import record
from shardwright.spec.catalog.gpus import gpus, sold_memory_bytes
from shardwright.spec.catalog.machines import GBIT_BYTES, MachineType, links
from shardwright.spec.catalog.price_rule import typical_price, with_network
from shardwright.spec.catalog.prices import MachinePrice, select_prices, table_prices
from shardwright.spec.cluster import Assumption, Gpu, Price
from shardwright.spec.read.custom_gpu import reference_machine
from shardwright.units import GIBIBYTE, GIGA, format_bytes

NETWORK = "network"  # what an assumption about it is called
SLOWEST_FABRIC_GBPS = 100.0


@record
class Default:
    """A value and where it was taken from (None where the user or the machine type says it)."""

    value: float
    assumed: Assumption | None = None


@record
class PriceGuess:
    """A price, if one is known, and where it is from (None where the user says it)."""

    price: Price | None
    assumed: Assumption | None = None

    def price_of(self, spot: bool) -> float | None:
        """Return the dollars an hour of spot machines or on demand, where they are known."""
        if self.price is None:
            return None
        return self.price.spot_per_hour if spot else self.price.on_demand_per_hour


def gpu_memory_bytes(gpu: Gpu, memory_gb: float | None) -> Default:
    """Return the memory of one GPU. A stated size is as sold, in GiB; where it is the size that the catalogue has for
    this GPU or for a sister part (V100-SXM2 and V100-SXM2-16), what the driver reports of that part counts."""
    if memory_gb is None:
        return Default(value=gpu.memory_bytes)
    stated = memory_gb * GIBIBYTE
    sold = sold_memory_bytes()
    family = gpu.name.split("-")[0]
    sisters = [gpu.name, *(name for name in sold if name.split("-")[0] == family)]
    for name in sisters:
        if sold.get(name) == stated:
            return Default(value=gpus()[name].memory_bytes)
    return Default(value=stated, assumed=Assumption("GPU memory", f"{memory_gb:g} GB taken as {format_bytes(stated)}"))


def network_bytes_per_second(gpu: Gpu, gpus_per_node: int, machine: MachineType | None) -> Default:
    """Return the bandwidth of one machine to the network, in one direction: the machine type's, else that of the
    GPU's reference machine, in proportion to the GPUs where each has a network port of its own."""
    if machine is not None and machine.network_bytes_per_second is not None:
        return Default(value=machine.network_bytes_per_second)
    reference = reference_machine(gpu)
    share = gpus_per_node / reference.gpus if reference.nic_per_gpu else 1.0
    value = (reference.network_bytes_per_second or 0.0) * share
    words = f"{value / GBIT_BYTES:g} Gbit/s a machine ({reference.network}), as in {reference.name}"
    return Default(value=value, assumed=Assumption(NETWORK, words))


def network_latency_seconds(gpu: Gpu, machine: MachineType | None, bytes_per_second: float) -> Default:
    """Return the latency of one message between machines: that of the machine type's network, or of the reference
    machine's if the bandwidth is a fabric's, else that of Ethernet."""
    if machine is not None and machine.network is not None:
        return Default(value=links()[machine.network].latency_seconds)
    fabric = bytes_per_second >= SLOWEST_FABRIC_GBPS * GBIT_BYTES
    kind = (reference_machine(gpu).network if fabric else None) or "Ethernet"
    value = links()[kind].latency_seconds
    return Default(value=value, assumed=Assumption("network latency", f"{value * 1e6:g} µs ({kind})"))


def host_memory_bytes(gpu: Gpu, gpus_per_node: int, machine: MachineType | None) -> Default:
    """Return the host memory of one machine: the machine type's, else the reference machine's share."""
    if machine is not None and machine.host_memory_bytes is not None:
        return Default(value=machine.host_memory_bytes)
    reference = reference_machine(gpu)
    value = (reference.host_memory_bytes or 0.0) * min(1.0, gpus_per_node / reference.gpus)
    return Default(
        value=value, assumed=Assumption("host memory", f"{format_bytes(value)} a machine, as in {reference.name}")
    )


def host_memory_bytes_per_second(gpu: Gpu, machine: MachineType | None) -> Default:
    """Return the host memory bandwidth of one machine: the machine type's, else the reference machine's."""
    if machine is not None and machine.host_memory_bytes_per_second is not None:
        return Default(value=machine.host_memory_bytes_per_second)
    reference = reference_machine(gpu)
    value = reference.host_memory_bytes_per_second or 0.0
    return Default(
        value=value, assumed=Assumption("host memory bandwidth", f"{value / GIGA:g} GB/s, as in {reference.name}")
    )


def domain_gpus(gpu: Gpu, nodes: int, gpus_per_node: int) -> Default:
    """Return how many GPUs the fast links join: one machine, or the rack where NVLink leaves the machine."""
    value = gpu.joined(nodes, gpus_per_node)
    machines = value // gpus_per_node
    if machines == 1:
        return Default(value=value)
    return Default(value=value, assumed=Assumption(f"{gpu.link} domain", f"{value} GPUs in {machines} machines"))


def catalogue_price(
    gpu: Gpu,
    gpus_per_node: int,
    machine: MachineType | None,
    *,
    provider: str | None,
    region: str | None,
    own_prices: Sequence[MachinePrice],
    spot: bool = False,
    network: float = 0.0,
) -> PriceGuess:
    """Return the price of one machine per hour, on demand or spot as asked, with what the same provider asks for the
    other: the user's own rows where one applies, else those of the price table, by the rule of `typical_price`, of
    machines of that size whose `network` is known to be like so many bytes per second where there are any.

    Raises SpecError for a provider or region that no price list knows.
    """
    table = table_prices()
    select_prices([*own_prices, *table], provider=provider, region=region)
    for offered in (own_prices, table):
        rows = [row for row in offered if row.gpu == gpu.name and _at(row, provider, region)]
        if machine is not None and machine.provider:
            rows = [row for row in rows if row.machine.casefold() == machine.name.casefold()]
        alike = [row for row in with_network(rows, network) if row.gpus == gpus_per_node] if offered is table else rows
        guess = None
        for some in (alike, rows):
            if guess is None or guess.price_of(spot) is None:
                guess = _guess(some, gpus_per_node, spot=spot) or guess
        if guess is not None:
            return guess
    where = " ".join(word for word in (provider, region) if word) or "any provider"
    return PriceGuess(
        price=None, assumed=Assumption("price", f"none known for {gpu.name} of {where}, so plans have no cost")
    )


def _at(row: MachinePrice, provider: str | None, region: str | None) -> bool:
    return all(
        wanted is None or wanted.casefold() == actual.casefold()
        for wanted, actual in ((provider, row.provider), (region, row.region))
    )


def _guess(rows: Sequence[MachinePrice], gpus_per_node: int, *, spot: bool) -> PriceGuess | None:
    """Return what rows of one GPU type say, or None where they say nothing."""
    basis, on_spot = typical_price(rows, gpus_per_node, spot=spot), spot
    if basis is None:
        basis, on_spot = typical_price(rows, gpus_per_node, spot=not spot), not spot
    if basis is None:
        return None
    theirs = [row for row in rows if row.provider == basis.row.provider]
    other = typical_price(theirs, gpus_per_node, spot=not on_spot)
    demand, taken_back = (other, basis) if on_spot else (basis, other)
    price = Price(
        on_demand_per_hour=demand.dollars if demand else None,
        spot_per_hour=taken_back.dollars if taken_back else None,
        source=basis.row.price.source,
        date=basis.row.price.date,
        seller=basis.seller,
    )
    words = f"{'spot' if on_spot else 'on demand'} {basis.words}"
    if on_spot != spot:
        words = f"none known {'for spot' if spot else 'on demand'}, so plans have no cost; {words}"
    return PriceGuess(price=price, assumed=Assumption("price", words))
