"""`Cluster`: machines with GPUs of one type each, the links in and between them, and what they cost."""

from __future__ import annotations

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
class NodePool:
    """`nodes` equal machines of `gpus_per_node` GPUs at one site.

    Bandwidths are bytes per second in one direction: `intra_bytes_per_second` of one GPU to its peers of the same
    machine or NVLink domain (`domain_gpus` GPUs, more than a machine for NVL72), `inter_bytes_per_second` of one
    whole machine to the network. Latencies are seconds for one message. Where racks of `rack_nodes` machines have a
    network of their own, `rack_bytes_per_second` is what leaves a rack; 0 machines stand for a network without racks.
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
