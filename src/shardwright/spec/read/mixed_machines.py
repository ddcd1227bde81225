"""Reading of machines with GPUs of several types: an entry of `nodes` whose `gpus` says how many of each.

Each type is a pool. What nobody states of it is, for each GPU, what a machine would have all of whose GPUs were of the
type; so where all are, it is as if the entry had named it. GPUs of different types reach each other over PCIe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwright.errors import SpecError
from shardwright.rows import holding
from shardwright.spec.catalog.gpus import resolve_gpu
from shardwright.spec.catalog.machines import links
from shardwright.spec.catalog.prices import MachinePrice
from shardwright.spec.cluster import Assumption, Gpu, MixedMachine, NodePool, Price
from shardwright.spec.read.pools import MOST_GPUS_PER_NODE, POOL_KEYS, read_pool
from shardwright.spec.text.fields import Section
from shardwright.units import GIGA

# Keys that are of one GPU type, or of machines that are sold.
OF_ONE_TYPE = ("gpu", "machine", "memory_gb", "provider", "domain_gpus", "rack_nodes", "rack_gbps")
SLOTS = ("PCIe3", "PCIe4", "PCIe5")  # slower ones first
SHARED = ("network", "host memory", "host memory bandwidth")  # assumptions about what the GPUs of a machine share
NO_PRICE = Assumption("price", "none known for machines with GPUs of several types, so plans have no cost")


def read_machines(
    section: Section, prices: Sequence[MachinePrice], measured: Mapping[str, Gpu]
) -> tuple[NodePool, ...]:
    """Return the pools of an entry of `nodes`, one for each GPU type in its machines; () after adding its problems."""
    counted = section.fields.get("gpus")
    if not isinstance(counted, Mapping):
        pool = read_pool(section, prices, measured)
        return () if pool is None else (pool,)
    before = len(section.problems)
    types = _types(section, counted, measured)
    section.reject_unknown(POOL_KEYS)
    for key in OF_ONE_TYPE if len(types) > 1 else ("gpu", "machine"):
        if section.fields.get(key) is not None:
            section.report(key, "is not said of machines whose GPUs `gpus` names", "leave it out")
    if len(section.problems) > before:
        return ()
    whole = sum(count for _, count in types.values())
    pools = [_as_if_alone(section, word, whole, prices, measured) for word, _ in types.values()]
    section.problems[before:] = dict.fromkeys(section.problems[before:])  # every type has had the same keys
    read = [pool for pool in pools if pool is not None]
    if len(read) < len(types) or len(types) == 1:
        return tuple(read)
    name = "+".join(f"{count}x{gpu}" for gpu, (_, count) in types.items())
    price = _price(section.fields)
    return tuple(
        _part(replace(pool, price=price), name, count, whole)
        for pool, (_, count) in zip(read, types.values(), strict=True)
    )


def _types(
    section: Section, counted: Mapping[object, object], measured: Mapping[str, Gpu]
) -> dict[str, tuple[str, int]]:
    """Return how many GPUs of each type a machine has, by the catalogue's name and beside the word that the user has
    for it, after adding what is wrong."""
    inner = Section(section.place_of("gpus"), {str(name): count for name, count in counted.items()}, section.problems)
    types: dict[str, tuple[str, int]] = {}
    for name in inner.fields:
        count = inner.integer(name, most=MOST_GPUS_PER_NODE)
        try:
            gpu = measured.get(name) or resolve_gpu(name, inner.place_of(name))[0]
        except SpecError as error:
            section.problems.extend(error.problems)
            continue
        if not gpu.memory_bytes:
            inner.report(name, "is not in the catalogue, so its memory is not known", "give such GPUs machines alone")
        elif count is not None:
            word, before = types.get(gpu.name, (name, 0))
            types[gpu.name] = word, before + count
        elif inner.fields[name] is None:
            inner.report(name, "is missing", "say how many a machine has")
    if not counted:
        section.report("gpus", "names no GPU", "write gpus: {RTX4090: 2, RTX3090: 1}")
    if sum(count for _, count in types.values()) > MOST_GPUS_PER_NODE:
        section.report("gpus", f"are more than {MOST_GPUS_PER_NODE} in a machine", "correct the numbers")
    return types


def _as_if_alone(
    section: Section, word: str, whole: int, prices: Sequence[MachinePrice], measured: Mapping[str, Gpu]
) -> NodePool | None:
    """Return the pool of machines whose `whole` GPUs are all of one type."""
    fields = {**section.fields, "gpu": word, "gpus": whole}
    return read_pool(Section(section.place, fields, section.problems), prices, measured)


def _price(fields: Mapping[str, object]) -> Price | None:
    """Return the price of a whole machine as the user states it: no price list has such machines."""
    on_demand, spot = fields.get("price_per_hour"), fields.get("spot_price_per_hour")
    if on_demand is None and spot is None:
        return None
    dollars = [None if value is None else float(str(value)) for value in (on_demand, spot)]
    return Price(on_demand_per_hour=dollars[0], spot_per_hour=dollars[1], source="user", date="user")


def _part(pool: NodePool, name: str, count: int, whole: int) -> NodePool:
    """Return the `count` GPUs of one type in machines called `name`, of a pool as if all `whole` were of the type."""
    share, gpu = count / whole, pool.gpu
    fitting = [slot for slot in SLOTS if links()[slot].bytes_per_second <= gpu.pcie_bytes_per_second]
    link = gpu.link if gpu.link.startswith("PCIe") else fitting[-1] if fitting else SLOTS[0]
    part = f", of which {count} of {whole} GPUs have their part"
    alone = (
        replace(item, words=item.words + part * (item.about in SHARED))
        for item in pool.assumed
        if item.about != NO_PRICE.about
    )
    rate = min(pool.intra_bytes_per_second, gpu.pcie_bytes_per_second)
    over_pcie = Assumption("GPUs of other types", f"over PCIe, {rate / GIGA:g} GB/s in one direction")
    more = holding(
        (pool.intra_bytes_per_second == gpu.link_bytes_per_second, over_pcie),
        (pool.dollars_per_node_hour is None, NO_PRICE),
    )
    return replace(
        pool,
        gpus_per_node=count,
        domain_gpus=count,
        inter_bytes_per_second=pool.inter_bytes_per_second * share,
        host_memory_bytes=pool.host_memory_bytes * share,
        host_memory_bytes_per_second=pool.host_memory_bytes_per_second * share,
        assumed=(*alone, *more),
        mixed=MixedMachine(
            name=name,
            gpus=whole,
            link=link,
            bytes_per_second=rate,
            latency_seconds=max(links()[link].latency_seconds, pool.intra_latency_seconds),
        ),
    )
