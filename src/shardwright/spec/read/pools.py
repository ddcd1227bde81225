"""Reading of a group of machines with GPUs of one type, an entry of `nodes`: hardware, what is stated of it, and its
price."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from shardwright.errors import SpecError
from shardwright.records import record
from shardwright.spec.catalog.gpus import resolve_gpu
from shardwright.spec.catalog.machines import GBIT_BYTES, MachineType, find_machine, links
from shardwright.spec.catalog.prices import DEAREST_GPU_HOUR, MachinePrice
from shardwright.spec.cluster import Assumption, Gpu, NodePool, Price
from shardwright.spec.read import pool_defaults as defaults
from shardwright.spec.read.custom_gpu import custom_gpu, reference_machine
from shardwright.spec.text.fields import Section
from shardwright.units import GIBIBYTE, GIGA

MOST_NODES, MOST_GPUS_PER_NODE, MOST_DOMAIN_GPUS = 1_000_000, 64, 4096
# fmt: off
POOL_KEYS = (
    "count", "gpu", "gpus", "machine", "memory_gb", "provider", "region", "price_per_hour", "spot",
    "spot_price_per_hour", "preemptions_per_hour", "intra_node_gb_per_second", "intra_node_latency_us",
    "inter_node_gbps", "inter_node_latency_us", "domain_gpus", "host_memory_gb", "host_memory_gb_per_second",
    "site", "rack_nodes", "rack_gbps",
)
# fmt: on
MEASURES = ("_gbps", "_gb_per_second", "_latency_us", "host_memory_gb")
NO_GPUS: Mapping[str, Gpu] = MappingProxyType({})


@record
class _Hardware:
    """What a group of machines is made of."""

    gpu: Gpu
    nodes: int
    gpus_per_node: int
    machine: MachineType | None
    assumed: tuple[Assumption, ...]


def read_pool(
    section: Section, prices: Sequence[MachinePrice], measured: Mapping[str, Gpu] = NO_GPUS
) -> NodePool | None:
    """Return the pool of an entry of `nodes`, or None after adding its problems."""
    before = len(section.problems)
    section.reject_unknown(POOL_KEYS)
    hardware = _hardware(section, measured)
    stated = {key: section.number(key) for key in POOL_KEYS if key.endswith(MEASURES)}
    stated["memory_gb"] = section.number("memory_gb", most=1e5)
    if hardware is not None and not hardware.gpu.memory_bytes:
        section.require("memory_gb", f"the catalogue has no {hardware.gpu.name}: say how much memory it has, in GiB")
    stated["preemptions_per_hour"] = section.number("preemptions_per_hour", zero=True, most=3600)
    stated["domain_gpus"] = domain = section.integer("domain_gpus", most=MOST_DOMAIN_GPUS)
    site, spot = section.text("site") or "", section.flag("spot")
    rack_nodes = section.integer("rack_nodes", most=MOST_NODES)
    if rack_nodes or stated["rack_gbps"]:
        section.require("rack_nodes", "say how many machines a rack has")
        section.require("rack_gbps", "say how many Gbit/s leave a rack, in one direction")
    price = _price(section, hardware, stated, prices)
    if hardware is not None and domain is not None and domain % hardware.gpus_per_node:
        message = f"{domain} is no multiple of the {hardware.gpus_per_node} GPUs of a machine"
        section.report("domain_gpus", message, "count the GPUs of whole machines")
    if hardware is None or price is None or len(section.problems) > before:
        return None
    pool = _assembled(hardware, stated)
    return replace(
        pool,
        price=price.price,
        spot=spot,
        site=site,
        rack_nodes=rack_nodes or 0,
        rack_bytes_per_second=(stated["rack_gbps"] or 0.0) * GBIT_BYTES,
        assumed=(*pool.assumed, *([price.assumed] if price.assumed else [])),
    )


def _assembled(hardware: _Hardware, stated: Mapping[str, float | None]) -> NodePool:
    """Return the pool of some hardware with the stated figures, and the catalogue's in place of those missing."""
    gpu, per_node, machine = hardware.gpu, hardware.gpus_per_node, hardware.machine
    assumed = list(hardware.assumed)

    def taken(default: defaults.Default) -> float:
        assumed.extend([default.assumed] if default.assumed else [])
        return default.value

    def chosen(key: str, scale: float, default: Callable[[], defaults.Default]) -> float:
        value = stated[key]
        if value is not None:
            return value * scale
        return taken(default())

    def intra(value: float) -> Callable[[], defaults.Default]:
        return lambda: defaults.Default(value=value)

    memory = taken(defaults.gpu_memory_bytes(gpu, stated["memory_gb"]))
    network = chosen("inter_node_gbps", GBIT_BYTES, lambda: defaults.network_bytes_per_second(gpu, per_node, machine))
    return NodePool(
        gpu=gpu,
        nodes=hardware.nodes,
        gpus_per_node=per_node,
        memory_bytes=memory,
        domain_gpus=int(chosen("domain_gpus", 1, lambda: defaults.domain_gpus(gpu, hardware.nodes, per_node))),
        intra_bytes_per_second=chosen("intra_node_gb_per_second", GIGA, intra(gpu.link_bytes_per_second)),
        intra_latency_seconds=chosen("intra_node_latency_us", 1e-6, intra(links()[gpu.link].latency_seconds)),
        inter_bytes_per_second=network,
        inter_latency_seconds=chosen(
            "inter_node_latency_us", 1e-6, lambda: defaults.network_latency_seconds(gpu, machine, network)
        ),
        host_memory_bytes=chosen(
            "host_memory_gb", GIBIBYTE, lambda: defaults.host_memory_bytes(gpu, per_node, machine)
        ),
        host_memory_bytes_per_second=chosen(
            "host_memory_gb_per_second", GIGA, lambda: defaults.host_memory_bytes_per_second(gpu, machine)
        ),
        preemptions_per_hour=stated["preemptions_per_hour"],
        assumed=tuple(assumed),
    )


def _hardware(section: Section, measured: Mapping[str, Gpu]) -> _Hardware | None:
    """Return GPU, machine type and counts of an entry of `nodes`, or None after adding its problems."""
    before = len(section.problems)
    section.require("count", "say how many machines there are")
    nodes = section.integer("count", most=MOST_NODES)
    per_node = section.integer("gpus", most=MOST_GPUS_PER_NODE)
    machine, gpu, reading = _named(section, measured)
    if machine is not None and per_node not in (None, machine.gpus):
        section.report("gpus", f"{machine.name} has {machine.gpus} GPUs, not {per_node}", "leave one of them out")
    if gpu is None or nodes is None or len(section.problems) > before:
        return None
    assumed = [Assumption("GPU", reading)] if reading else []
    if per_node is None:
        source = machine or reference_machine(gpu)
        per_node = source.gpus
        assumed += [] if machine else [Assumption("machine", f"{per_node} GPUs, as in {source.name}")]
    return _Hardware(gpu=gpu, nodes=nodes, gpus_per_node=per_node, machine=machine, assumed=tuple(assumed))


def _named(section: Section, measured: Mapping[str, Gpu]) -> tuple[MachineType | None, Gpu | None, str]:
    """Return the machine type and the GPU that an entry names or describes, None for what it does not, and what was
    taken to be meant by the GPU's name; add what is wrong with them to the section's problems."""
    described = section.fields.get("gpu")
    machine_name, gpu_name = section.text("machine"), None
    machine: MachineType | None = None
    gpu: Gpu | None = None
    reading = ""
    if not isinstance(described, Mapping):
        gpu_name = section.text("gpu")
    elif machine_name is not None:
        section.report("gpu", f"{machine_name} says which GPU it has", "leave one of them out")
    else:
        gpu = custom_gpu(Section(section.place_of("gpu"), described, section.problems))
    try:
        if machine_name is not None:
            machine = find_machine(machine_name, section.place_of("machine"))
            gpu = resolve_gpu(machine.gpu)[0]
    except SpecError as error:
        section.problems.extend(error.problems)
    try:
        if gpu_name is not None:
            profiled = measured.get(gpu_name)
            named, reading = (profiled, "") if profiled else resolve_gpu(gpu_name, section.place_of("gpu"))
            if machine is not None and gpu != named:
                section.report("gpu", f"{machine.name} has {machine.gpu}, not {named.name}", "leave one of them out")
            gpu = named
    except SpecError as error:
        section.problems.extend(error.problems)
    if gpu_name is None and machine_name is None and not described:
        section.report("gpu", "is missing", "name the GPU or the machine type")
    return machine, gpu, reading


def _price(
    section: Section,
    hardware: _Hardware | None,
    stated: Mapping[str, float | None],
    own_prices: Sequence[MachinePrice],
) -> defaults.PriceGuess | None:
    """Return the price of an entry of `nodes`, the user's figures first, or None after adding its problems."""
    before = len(section.problems)
    on_demand = section.number("price_per_hour", zero=True, most=1e6)
    spot = section.number("spot_price_per_hour", zero=True, most=1e6)
    provider, region = section.text("provider"), section.text("region")
    if hardware is None:
        return None
    machine = hardware.machine
    if machine is not None and machine.provider and provider and provider.casefold() != machine.provider:
        section.report("provider", f"{machine.name} is a machine of {machine.provider}", "correct one of them")
    for key, dollars in (("price_per_hour", on_demand), ("spot_price_per_hour", spot)):
        if dollars is not None and dollars > DEAREST_GPU_HOUR * hardware.gpus_per_node:
            message = f"${dollars / hardware.gpus_per_node:,.2f} per GPU and hour is not plausible"
            section.report(key, message, "US dollars per hour of one whole machine")
    taken_back = section.fields.get("spot") is True
    if taken_back and on_demand is not None and spot is None:
        message = "is what machines cost on demand, and these are spot"
        section.report("price_per_hour", message, "write spot_price_per_hour")
    if len(section.problems) > before:
        return None
    needed = spot if taken_back else on_demand
    if needed is not None:
        price = Price(on_demand_per_hour=on_demand, spot_per_hour=spot, source="user", date="user")
        return defaults.PriceGuess(price=price)
    try:
        guess = defaults.catalogue_price(
            hardware.gpu,
            hardware.gpus_per_node,
            machine,
            provider=provider,
            region=region,
            own_prices=own_prices,
            spot=taken_back,
            network=_network_between(hardware, stated["inter_node_gbps"]),
        )
    except SpecError as error:
        section.problems.extend(replace(item, path=section.place_of(item.path)) for item in error.problems)
        return None
    return _merged_price(guess, on_demand, spot)


def _network_between(hardware: _Hardware, gbps: float | None) -> float:
    """Return the bytes per second of one machine to the network that its price is to be for."""
    if gbps is not None:
        return gbps * GBIT_BYTES
    return defaults.network_bytes_per_second(hardware.gpu, hardware.gpus_per_node, hardware.machine).value


def _merged_price(guess: defaults.PriceGuess, on_demand: float | None, spot: float | None) -> defaults.PriceGuess:
    """Return the catalogue's price with the user's figures in place of its own."""
    if on_demand is None and spot is None:
        return guess
    known = guess.price or Price(on_demand_per_hour=None, spot_per_hour=None, source="none", date="")
    price = Price(
        on_demand_per_hour=known.on_demand_per_hour if on_demand is None else on_demand,
        spot_per_hour=known.spot_per_hour if spot is None else spot,
        source=f"user; {known.source}",
        date=known.date or "user",
    )
    return replace(guess, price=price)
