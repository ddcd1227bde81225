"""Groups of machines as a cluster file: what was seen as keys, what was not as comments that name it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from shardwright.records import record
from shardwright.rows import holding
from shardwright.spec.catalog.gpus import MEBIBYTE, gpus, known_gpu, sold_memory_bytes
from shardwright.spec.cluster import Gpu
from shardwright.units import GIBIBYTE, GIGA

OTHER_SIZE = 0.15  # a part of a GPU's memory by which a driver may differ from the catalogue
OTHER_LINK = 0.1
MOST_LISTED = 20  # hosts in one line
OF_PARTS = "parts of GPUs (MIG)"
NAMELESS = "a GPU without a name"
SIZED = re.compile(r"(.+?)[-_ ](\d+)gb?", re.IGNORECASE)  # `a100_80g`


def cluster_text(machines: Sequence[MachineGroup], source: str) -> str:
    """Return the cluster file of groups of machines that `source` described. Raises SpecError for none."""
    lines = [f"# Found by `shardwright discover`: {source}. Lines with # were not seen: write them in where you know."]
    return "\n".join([*lines, "nodes:", *(line for group in machines for line in _entry(group))]) + "\n"


def unseen(machines: Sequence[MachineGroup]) -> tuple[str, ...]:
    """Return in words what could not be seen."""
    words = []
    for group in machines:
        words += [f"{group.gpu or NAMELESS}: {what}" for what, _ in _missing(group)]
        for part in group.by_type:
            if known(part) is None:
                profile = "`shardwright profile` measures it, docs/how-to-profile.md"
                words.append(f"{part.gpu or NAMELESS}: not in the catalogue; {profile}")
    return tuple(dict.fromkeys(words))


def known(group: MachineGroup) -> Gpu | None:
    """Return the catalogue's GPU of a group, None where it has none. Names that cover several sizes go by memory."""
    words = [group.gpu]
    if match := SIZED.fullmatch(group.gpu):
        words.append(f"{match[1]}-{match[2]}")
    if group.gpu_memory_mib:
        words = [f"{group.gpu}-{group.gpu_memory_mib / 1024:.0f}", *words]
    return next((gpu for word in words if (gpu := known_gpu(word))), None)


def _entry(group: MachineGroup) -> Iterator[str]:
    gpu = known(group)
    yield f"  - count: {group.count}"
    if group.others:
        yield from _types(group)
    else:
        name = " ".join(group.gpu.split())
        yield f"    gpu: {gpu.name}  # {name}" if gpu else f"    gpu: {json.dumps(name)}  # not in the catalogue"
        yield f"    gpus: {group.gpus}"
        yield from _memory(group)
    if group.host_memory_gib:
        yield f"    host_memory_gb: {group.host_memory_gib:g}"
    if gpu and group.nvlink_gb_per_second is not None:
        yield from _links(group.nvlink_gb_per_second, gpu)
    if group.network_gbps:
        cards = " + ".join(f"{rate:g}" for rate in group.network_gbps)
        yield f"    inter_node_gbps: {sum(group.network_gbps):g}  # {cards}: leave out cards that training does not use"
    yield from (f"    # {line}" for _, line in _missing(group))


def _types(group: MachineGroup) -> Iterator[str]:
    """Yield how many GPUs of each type a machine has; whose memory is not the catalogue's cannot be said there, and
    those of one type that differ in it count together."""
    yield "    gpus:"
    types: dict[str, list[MachineGroup]] = {}
    for part in group.by_type:
        gpu, name = known(part), " ".join(part.gpu.split())
        types.setdefault(gpu.name if gpu else json.dumps(name), []).append(part)
    for word, parts in types.items():
        names = dict.fromkeys(" ".join(part.gpu.split()) for part in parts if known(part))
        yield f"      {word}: {sum(part.gpus for part in parts)}" + (f"  # {', '.join(names)}" if names else "")
        for part in parts:
            yield from (f"      # {line.strip()} of {part.gpus}: not as the catalogue has it" for line in _memory(part))


def _memory(group: MachineGroup) -> Iterator[str]:
    gpu = known(group)
    if gpu and group.gpu_memory_mib and _differs(group.gpu_memory_mib * MEBIBYTE, gpu.memory_bytes, OTHER_SIZE):
        yield f"    memory_gb: {group.gpu_memory_mib / 1024:.0f}"


def _links(seen_gb_per_second: float, gpu: Gpu) -> Iterator[str]:
    """Yield how GPUs of a machine are joined, where it is not as the catalogue has it."""
    usual = gpu.link_bytes_per_second / GIGA
    if not seen_gb_per_second and gpu.link_domain > 1:
        yield f"    intra_node_gb_per_second: {gpu.pcie_bytes_per_second / GIGA:g}  # no NVLink: PCIe"
    elif seen_gb_per_second and _differs(seen_gb_per_second, usual, OTHER_LINK):
        yield f"    intra_node_gb_per_second: {seen_gb_per_second:g}  # NVLink"


def _missing(group: MachineGroup) -> Iterable[tuple[str, str]]:
    """Return what was not seen of a group, in words and as a line of the file."""
    return holding(
        (not group.network_gbps,
         ("the network between machines", "inter_node_gbps:      # Gbit/s of one machine, in one direction")),
        (group.nvlink_gb_per_second is None,
         ("NVLink inside a machine", "intra_node_gb_per_second:      # GB/s of one GPU, in one direction")),
        (group.host_memory_gib is None, ("host memory", "host_memory_gb:      # GiB of one machine")),
        (True, ("what a machine costs", "price_per_hour:      # US dollars of one machine")),
    )  # fmt: skip


def _differs(figure: float, other: float, part: float) -> bool:
    return abs(figure - other) > part * other


PARTS = re.compile(r"\dg\.\d+gb", re.IGNORECASE)  # in names of MIG's parts of a GPU, which train nothing together
Ask = Callable[[Sequence[str]], str | None]  # a command's standard output; None where it is missing or fails


@record
class OtherGpus:
    """GPUs of one more type in a machine, and the memory of one in MiB."""

    gpu: str
    gpus: int
    gpu_memory_mib: float | None = None


@record
class MachineGroup:
    """`count` equal machines. `gpu` is the name that its source gives; `others` are its GPUs of other types. None and
    () stand for what could not be seen: memory of a GPU in MiB, of the host in GiB, NVLink of one GPU in GB/s (0:
    none), network cards in Gbit/s each."""

    gpu: str
    gpus: int
    count: int = 1
    gpu_memory_mib: float | None = None
    host_memory_gib: float | None = None
    nvlink_gb_per_second: float | None = None
    network_gbps: tuple[float, ...] = ()
    others: tuple[OtherGpus, ...] = ()

    @property
    def by_type(self) -> tuple[MachineGroup, ...]:
        """The GPUs of each type in a machine, as if they were one."""
        alike = (
            replace(self, gpu=part.gpu, gpus=part.gpus, gpu_memory_mib=part.gpu_memory_mib, others=())
            for part in self.others
        )
        return (replace(self, others=()), *alike)


@record
class Node:
    """One machine, or its GPUs of one type. `gone` says why it takes no new work, "" where it does; `notes` what had to
    be decided."""

    host: str
    machine: MachineGroup
    gone: str = ""
    notes: tuple[str, ...] = ()


def grouped(nodes: Iterable[Node]) -> tuple[MachineGroup, ...]:
    """Return machines that take work, equal ones counted together, in the order in which they first came; parts of GPUs
    are none."""
    counts = Counter[MachineGroup]()
    there = [node for node in nodes if not node.gone and not PARTS.search(node.machine.gpu)]
    for _, group in groupby(enumerate(there), key=lambda item: item[1].host or item[0]):
        first, *others = (node.machine for _, node in group)
        more = tuple(OtherGpus(gpu=part.gpu, gpus=part.gpus, gpu_memory_mib=part.gpu_memory_mib) for part in others)
        counts[replace(first, count=1, others=more)] += first.count
    return tuple(replace(machine, count=count) for machine, count in counts.items())


def left_out(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return in words which nodes and parts of GPUs are left out, and why."""
    hosts: dict[str, list[str]] = {}
    for node in nodes:
        reason = node.gone or (OF_PARTS if PARTS.search(node.machine.gpu) else "")
        what = f"{node.host} ({node.machine.gpus} × {node.machine.gpu})".strip() if reason == OF_PARTS else node.host
        if reason:
            hosts.setdefault(reason, []).append(what or node.machine.gpu)
    return tuple(f"{_listed(dict.fromkeys(names))}: {reason}" for reason, names in hosts.items())


def assumed(machines: Iterable[MachineGroup]) -> tuple[str, ...]:
    """Return in words which GPUs were taken for one of several of the catalogue, because nobody told their memory."""
    words = []
    for group in (part for machine in machines for part in machine.by_type):
        gpu = known(group)
        if gpu is None or group.gpu_memory_mib:
            continue
        stem = re.split(r"[-_ ]", gpu.name)[0]
        others = [name for name in gpus() if name != gpu.name and re.split(r"[-_ ]", name)[0] == stem]
        if others and re.sub(r"\W|_|nvidia|tesla", "", group.gpu.casefold()) == stem.casefold():
            memory = f"{sold_memory_bytes()[gpu.name] / GIBIBYTE:.0f} GB"
            words.append(f"{group.gpu} is taken for {gpu.name} ({memory}), not {' or '.join(others)}: write it in")
    return tuple(dict.fromkeys(words))


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(names[:MOST_LISTED])
    return f"{shown} and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else shown
