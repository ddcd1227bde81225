"""`Cluster`: machines with their GPUs, the links in and between them, and what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from shardwright.records import record


@record(kw_only=False)
class Assumption:
    """What a description left open, `about` in a word or two, and in `words` what was taken instead and why."""

    about: str
    words: str

    @classmethod
    def of(cls, text: str) -> Assumption:
        """Return the assumption that `str` writes so."""
        about, _, words = text.partition(": ")
        return cls(about, words)

    def __str__(self) -> str:
        return f"{self.about}: {self.words}"


def kind_of(name: str) -> str:
    """Return the catalogue's name of a GPU type, without what tells groups of machines apart (`spec.read.sites`)."""
    return name.partition("@")[0]


LARGEST_CHASSIS_DOMAIN = 16  # GPUs that links join inside one machine at most


@record
class Gpu:
    """One accelerator as its datasheet has it. Rates are dense (no sparsity), per second, decimal.

    `peak_flops` maps a precision (fp32, tf32, fp16, bf16, fp8) to FLOP/s; a precision that is missing is not
    supported. `link_bytes_per_second` is the GPU-to-GPU bandwidth in one direction and reaches `link_domain` GPUs.
    """

    name: str
    vendor: str
    architecture: str
    compute_capability: str
    multiprocessors: int
    clock_hertz: float
    peak_flops: tuple[tuple[str, float], ...]
    memory_bytes: float
    memory_bytes_per_second: float
    l2_bytes: float
    link: str
    link_bytes_per_second: float
    link_domain: int
    pcie_bytes_per_second: float
    tdp_watts: float
    source: str
    date: str

    @property
    def kind(self) -> str:
        return kind_of(self.name)

    @property
    def capability(self) -> float:
        """The CUDA compute capability as a number (9.0), infinite where the GPU has none."""
        try:
            return float(self.compute_capability)
        except ValueError:
            return float("inf")

    def joined(self, nodes: int, gpus_per_node: int) -> int:
        """Return how many GPUs of so many machines the fast links join: one machine's, or more where NVLink leaves it,
        whole machines in any case."""
        reached = self.link_domain if self.link_domain > LARGEST_CHASSIS_DOMAIN else 0
        return max(min(reached // gpus_per_node, nodes), 1) * gpus_per_node

    def peak(self, precision: str) -> float | None:
        """Return the dense peak in FLOP/s, or None where the GPU cannot compute in `precision`."""
        return dict(self.peak_flops).get(precision)


@record
class Price:
    """US dollars per hour of one machine, with the source and date (or "user") of the figure, and who sells it where:
    the machine of one provider, empty where the user says the price."""

    on_demand_per_hour: float | None
    spot_per_hour: float | None
    source: str
    date: str
    seller: str = ""


@record
class MixedMachine:
    """What is said of a pool whose machines have GPUs of other types, too: what the machines are called, the `gpus` of
    all types in one, and over which `link` of the catalogue its GPUs reach the others there (bytes per second of one in
    one direction, seconds)."""

    name: str
    gpus: int
    link: str
    bytes_per_second: float
    latency_seconds: float


@record
class NodePool:
    """`nodes` equal machines of `gpus_per_node` GPUs at one site.

    Bandwidths are bytes per second in one direction: `intra_bytes_per_second` of one GPU to its peers of the same
    machine or NVLink domain (`domain_gpus` GPUs, more than a machine for NVL72), `inter_bytes_per_second` of one
    whole machine to the network. Latencies are seconds for one message. Where racks of `rack_nodes` machines have a
    network of their own, `rack_bytes_per_second` is what leaves a rack; 0 machines stand for a network without racks.

    Of machines with GPUs of several types (`mixed`) each type is a pool: the GPUs of one type in each machine, with
    their part of its host memory and its network. Price and preemptions are those of the whole machine.
    """

    gpu: Gpu
    nodes: int
    gpus_per_node: int
    memory_bytes: float
    domain_gpus: int
    intra_bytes_per_second: float
    intra_latency_seconds: float
    inter_bytes_per_second: float
    inter_latency_seconds: float
    host_memory_bytes: float
    host_memory_bytes_per_second: float
    price: Price | None = None
    preemptions_per_hour: float | None = None
    spot: bool = False
    site: str = ""
    rack_nodes: int = 0
    rack_bytes_per_second: float = 0.0
    assumed: tuple[Assumption, ...] = ()
    mixed: MixedMachine | None = None

    @property
    def machines(self) -> str:
        """What tells the pool's machines from others: pools that share machines have the same."""
        return self.mixed.name if self.mixed else self.gpu.name

    @property
    def gpus_of_machine(self) -> int:
        """The GPUs of one machine, of all types."""
        return self.mixed.gpus if self.mixed else self.gpus_per_node

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def host_memory_bytes_per_gpu(self) -> float:
        return self.host_memory_bytes / self.gpus_per_node

    @property
    def dollars_per_node_hour(self) -> float | None:
        """The price that applies: that of spot machines where the pool is spot, else on demand. None where it is not
        known."""
        if self.price is None:
            return None
        return self.price.spot_per_hour if self.spot else self.price.on_demand_per_hour

    def resized(self, nodes: int) -> NodePool:
        """Return so many of these machines. Fast links join no more than these and, where they join all machines here,
        as many as they reach."""
        domain = min(self.domain_gpus, nodes * self.gpus_per_node)
        if self.domain_gpus >= self.gpus:
            domain = max(domain, self.gpu.joined(nodes, self.gpus_per_node))
        return replace(self, nodes=nodes, domain_gpus=max(domain, self.gpus_per_node))


def on_slots(pool: NodePool) -> NodePool:
    """Return GPUs that share machines with other types as if all of a machine were of theirs, and joined as they are to
    the others."""
    machine = pool.mixed
    assert machine is not None, "it has several types"
    gpu, slotted = pool.gpu, machine.link != pool.gpu.link
    return replace(
        pool,
        gpu=replace(gpu, link=machine.link, link_bytes_per_second=gpu.pcie_bytes_per_second) if slotted else gpu,
        gpus_per_node=machine.gpus,
        domain_gpus=machine.gpus,
        intra_bytes_per_second=machine.bytes_per_second,
        intra_latency_seconds=machine.latency_seconds,
        mixed=None,
    )


@record
class SiteLink:
    """The connection between two sites: bytes per second in one direction, one-way latency, price of traffic."""

    sites: tuple[str, str]
    bytes_per_second: float
    latency_seconds: float
    egress_dollars_per_gigabyte: float = 0.0


@record(slots=False)
class Cluster:
    """Pools of machines and, where they stand at several sites, the links between those."""

    pools: tuple[NodePool, ...]
    site_links: tuple[SiteLink, ...] = ()
    name: str = ""

    @cached_property
    def gpus(self) -> int:
        return sum(pool.gpus for pool in self.pools)

    @cached_property
    def pool_of(self) -> dict[str, NodePool]:
        """The first pool of each GPU type."""
        first: dict[str, NodePool] = {}
        for pool in self.pools:
            first.setdefault(pool.gpu.name, pool)
        return first

    @cached_property
    def gpus_by_type(self) -> Counter[str]:
        """How many GPUs of each type there are."""
        there: Counter[str] = Counter()
        for pool in self.pools:
            there[pool.gpu.name] += pool.gpus
        return there

    @cached_property
    def sites(self) -> dict[str, str]:
        """The site of each GPU type."""
        return {name: pool.site for name, pool in self.pool_of.items()}

    @cached_property
    def mixed(self) -> bool:
        """Whether some machines have GPUs of several types."""
        return any(pool.mixed for pool in self.pools)

    def of(self, pools: tuple[NodePool, ...]) -> Cluster:
        """Return a cluster of some pools, which keep the links between sites that are left."""
        sites = {pool.site for pool in pools}
        return replace(self, pools=pools, site_links=tuple(link for link in self.site_links if sites >= {*link.sites}))

    @cached_property
    def one_machine(self) -> bool:
        """Whether all pools are the GPUs of a single machine with several types."""
        return self.mixed and len({pool.machines for pool in self.pools}) == 1 and self.pools[0].nodes == 1


def machines_used(cluster: Cluster, used: Mapping[str, int]) -> list[tuple[NodePool, int]]:
    """Return the machines that so many GPUs of each type occupy, whole machines: a pool of each kind, and how many of
    its machines. What GPUs of several types share counts once."""
    taken: dict[str, tuple[NodePool, int]] = {}
    for pool in cluster.pools:
        count = -(-used.get(pool.gpu.name, 0) // pool.gpus_per_node)
        if count > taken.get(pool.machines, (pool, 0))[1]:
            taken[pool.machines] = pool, count
    return list(taken.values())
