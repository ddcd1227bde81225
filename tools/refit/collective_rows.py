"""Measured collectives read from a file. docs/calibration.md has its format."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tools.refit.rows import read_columns

from shardwright.arrays import Bools, Floats
from shardwright.cost.learned.links import LinkFit, NetworkFit, link_fabric
from shardwright.cost.network.collectives import SECONDS, Group, group
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.catalog.machines import links
from shardwright.spec.cluster import NodePool
from shardwright.spec.read.custom_gpu import reference_machine
from shardwright.units import GIGA

COMM_FILE = "comm.csv.gz"
COLUMNS = (
    *("source", "gpu", "interconnect", "collective", "n_ranks", "ranks_per_node", "n_nodes", "bytes", "dtype"),
    *("time_us", "quality"),
)
# Kernels of inference engines, mixed topologies, and traces of training with other work beside.
EXCLUDED = ("aiconfigurator_customAR", "galvatron", "nnscaler", "aicb")
EAGER = ("vtrain", "sailor_aceso", "vidur", "ml-engineering")  # times include launching from Python
SHORTEST_EAGER_BYTES = 2**24
COPYING = {"sailor_aceso": ("all_gather", "reduce_scatter")}  # into lists of tensors
BRIDGED = ("RTX3090", "A100-PCIe-80", "A100-PCIe-40", "H100-NVL")  # pairs of these were joined by NVLink
BRIDGED_WHOLLY = ("A100-PCIe-80", "A100-PCIe-40", "H100-NVL")
CUBE_LINKS = ("NVLink1", "NVLink2")  # no links from each GPU to all; even rings of 2, 4 and 8 only
MOST_SIZES = 24
TRAINING_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One collective over one group of GPUs: `sizes` of its buffer in bytes and `seconds` [S]."""

    source: str
    collective: str
    ranks: int
    pool: NodePool
    sizes: Floats
    seconds: Floats

    @property
    def crosses(self) -> bool:
        """Whether the group leaves the domain."""
        return self.ranks > self.pool.domain_gpus

    def predicted(self, fit: LinkFit, network: NetworkFit) -> Floats:
        """Return the seconds under fits of the links, [S]."""
        fabric = link_fabric(self.pool, fit, network)
        ranks: Group = group(fabric, np.array([self.ranks]), np.array([1]))
        return np.asarray(SECONDS[self.collective](fabric, ranks, self.sizes))

    def part(self, chosen: Bools) -> Series:
        """Return some of the sizes."""
        return replace(self, sizes=self.sizes[chosen], seconds=self.seconds[chosen])


def read_collectives(folder: Path) -> list[Series]:
    """Return the measured collectives of `folder`, of each the sizes of training (at most 24, evenly spread)."""
    by_name: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for values in read_columns(folder / COMM_FILE, COLUMNS):
        row = dict(zip(COLUMNS, values, strict=True))
        if not _usable(row):
            continue
        key = tuple(row[name] for name in ("source", "gpu", "interconnect", "collective", "n_ranks", "ranks_per_node"))
        by_name.setdefault((*key, row["n_nodes"]), []).append((float(row["bytes"]), float(row["time_us"]) * 1e-6))
    series = []
    for (source, gpu, words, collective, ranks, per_node, nodes), points in sorted(by_name.items()):
        values_ = np.array(sorted(points))
        spread = np.unique(np.linspace(0, len(values_) - 1, MOST_SIZES).astype(int))
        sizes, seconds = values_[spread].T
        pool = measured_pool(gpu, words, int(per_node), int(nodes))
        series.append(
            Series(source=source, collective=collective, ranks=int(ranks), pool=pool, sizes=sizes, seconds=seconds)
        )
    return series


def _usable(row: dict[str, str]) -> bool:
    gpu, ranks, nodes = row["gpu"], int(row["n_ranks"]), int(row["n_nodes"] or 1)
    eager = row["source"] in EAGER and nodes == 1
    return not (
        gpu not in gpus()
        or row["collective"] not in SECONDS
        or row["collective"] in COPYING.get(row["source"], ())
        or row["source"] in EXCLUDED
        or row["quality"] == "3"
        or row["dtype"] == "int8"
        or (gpu in BRIDGED and ranks == 2)
        or gpu in BRIDGED_WHOLLY
        or (gpus()[gpu].link in CUBE_LINKS and (ranks & (ranks - 1) or row["collective"] == "all_to_all"))
        or float(row["bytes"]) < (SHORTEST_EAGER_BYTES if eager else TRAINING_BYTES)
    )


def measured_pool(gpu_name: str, interconnect: str, per_node: int, nodes: int) -> NodePool:
    """Return the machines on which a collective was measured, with what their interconnect's description says of the
    network ("EFAv4 8x400Gbps"), else that of the GPU's reference machine."""
    gpu = gpus()[gpu_name]
    machine = reference_machine(gpu)
    network = next((kind for word, kind in (("EFA", "EFA"), ("RoCE", "RoCE")) if word in interconnect), machine.network)
    stated = re.search(r"([\dx]+)Gbps", interconnect)
    bandwidth = (machine.network_bytes_per_second or 0.0) * per_node / machine.gpus
    if stated:
        bandwidth = math.prod(int(number) for number in stated[1].split("x")) * GIGA / 8.0
    return NodePool(
        gpu=gpu,
        nodes=nodes,
        gpus_per_node=per_node,
        memory_bytes=gpu.memory_bytes,
        domain_gpus=min(gpu.link_domain, per_node * nodes) if "NVL72" in interconnect else per_node,
        intra_bytes_per_second=gpu.link_bytes_per_second,
        intra_latency_seconds=links()[gpu.link].latency_seconds,
        inter_bytes_per_second=bandwidth,
        inter_latency_seconds=links()[network or "Ethernet"].latency_seconds,
        host_memory_bytes=0.0,
        host_memory_bytes_per_second=0.0,
    )


def gpu_names(series: Sequence[Series]) -> list[str]:
    """Return the GPUs that were measured, sorted."""
    return sorted({measured.pool.gpu.name for measured in series})
