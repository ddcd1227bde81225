"""Machines from recorded output: files of scontrol, sinfo, kubectl, nvidia-smi and ibstat, joined by host.

What a file holds shows in it. The host of a file of one machine is what its name begins with, up to the first dot
(`gpu01.smi.xml`, `gpu01.topo`, `gpu01.ibstat`), or what stands before `=` (`gpu01=topo.txt`). Files that contradict
each other, and nodes of which no file tells, are named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree

from shardwright.discovery.document import OF_PARTS, MachineGroup, Node, known
from shardwright.discovery.sources import nodes_of_kubectl, nodes_of_scontrol, nodes_of_sinfo, states_of_sinfo
from shardwright.errors import bad
from shardwright.records import record
from shardwright.spec.text.reading import read_text

LARGEST_BYTES = 200_000_000  # a listing of some thousand nodes of Kubernetes
# How a file of each kind shows, and what it is called.
KINDS: Mapping[str, tuple[re.Pattern[str], str]] = {
    "smi": (re.compile(r"\s*(?:<\?xml[^>]*>\s*)?(?:<!DOCTYPE[^>]*>\s*)?<nvidia_smi_log"), "nvidia-smi -q -x"),
    "kubectl": (re.compile(r"\s*\{"), "kubectl get nodes -o json"),
    "scontrol": (re.compile(r"(?m)^\s*NodeName="), "scontrol show node"),
    "sinfo": (re.compile(r"(?m)^(?=.*\bNODELIST\b)(?=.*\b(?:STATE|GRES)\b)"), "sinfo"),
    "topo": (re.compile(r"(?m)^\s*(?:\x1b\[\d+m)?\s*GPU0\b"), "nvidia-smi topo -m"),
    "ibstat": (re.compile(r"(?m)^CA '"), "ibstat"),
}
LISTINGS = {"slurm": ("scontrol", "sinfo"), "kubernetes": ("kubectl",), "nvidia-smi": ("smi",)}
LINK_GB_PER_SECOND = {"B": 50.0}  # of one NVLink in one direction: Blackwell; others carry 25
OLDER_LINK = 25.0
SWITCHED = 6  # links to every other GPU from which on they go through a switch, which takes all links of a GPU
PORT = re.compile(r"State:\s*(\w+).*?Rate:\s*(\d+)", re.S)
COLOURS = re.compile(r"\x1b\[\d*m")


@dataclass(slots=True)
class Recorded:
    """What files tell: nodes of a listing, and by host what the files of one machine say. `notes` are contradictions
    and gaps."""

    nodes: list[Node] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    gpus: dict[str, tuple[MachineGroup, ...]] = field(default_factory=dict)
    nvlink: dict[str, tuple[int, float]] = field(default_factory=dict)
    network: dict[str, tuple[float, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@record(kw_only=False)
class Details:
    """What the files of one machine say: GPUs by type, NVLinks of one GPU, rates of network cards in Gbit/s."""

    gpus: tuple[MachineGroup, ...]
    links: float | None
    network: tuple[float, ...] | None


def recorded_nodes(source: str | None, files: Sequence[str]) -> tuple[str, tuple[Node, ...], tuple[str, ...]]:
    """Return who tells of the machines, the nodes, and what contradicts or is missing. Raises SpecError for a file that
    is none of `KINDS`, and where none of the source is there."""
    seen, kinds = Recorded(), Counter[str]()
    for name in files:
        host, text = _opened(name)
        kind = next((kind for kind, (pattern, _) in KINDS.items() if pattern.search(text)), None)
        if kind is None:
            known_kinds = ", ".join(words for _, words in KINDS.values())
            raise bad(name, "is no output that is read here", f"read are {known_kinds}")
        kinds[kind] += 1
        READERS[kind](text, host, name, seen)
    source = source or next(name for name in LISTINGS if name == "nvidia-smi" or set(LISTINGS[name]) & set(kinds))
    if not set(LISTINGS[source]) & set(kinds):
        wanted = " or ".join(KINDS[kind][1] for kind in LISTINGS[source])
        raise bad(f"`from={source}`", f"no file holds the output of {wanted}", "add one")
    nodes = seen.nodes
    if source == "nvidia-smi":
        nodes = [node for node in nodes if node.gone == OF_PARTS]
        nodes += [Node(host=host, machine=group) for host, groups in seen.gpus.items() for group in groups]
    return source, tuple(_joined(nodes, seen)), tuple(dict.fromkeys(seen.notes))


def _opened(name: str) -> tuple[str, str]:
    """Return the host of a file and its text."""
    host, sign, path = name.partition("=")
    if not sign:
        host, path = Path(name).name.split(".", 1)[0], name
    return host, COLOURS.sub("", read_text(Path(path), limit_bytes=LARGEST_BYTES))


def _of_scontrol(text: str, host: str, name: str, seen: Recorded) -> None:
    seen.nodes += nodes_of_scontrol(text)


def _of_sinfo(text: str, host: str, name: str, seen: Recorded) -> None:
    seen.states |= states_of_sinfo(text)
    listed = {node.host for node in seen.nodes}
    seen.nodes += [node for node in nodes_of_sinfo(text) if node.host not in listed]


def _of_kubectl(text: str, host: str, name: str, seen: Recorded) -> None:
    nodes = nodes_of_kubectl(text)
    if not nodes:
        raise bad(name, "lists no node with GPUs", "write it by `kubectl get nodes -o json`")
    seen.nodes += nodes


def _of_smi(text: str, host: str, name: str, seen: Recorded) -> None:
    """GPUs of a machine: their names, memory, and parts (MIG) that are switched on."""
    try:
        log = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise bad(name, f"is no XML: {error}", "write it by `nvidia-smi -q -x`") from None
    counts, parts = Counter[MachineGroup](), Counter[MachineGroup]()
    for gpu in log.iter("gpu"):
        product = (gpu.findtext("product_name") or "").strip()
        memory = re.match(r"([\d.]+) MiB", gpu.findtext("fb_memory_usage/total") or "")
        parted = (gpu.findtext("mig_mode/current_mig") or "").strip() == "Enabled"
        machine = MachineGroup(gpu=product, gpus=1, gpu_memory_mib=float(memory[1]) if memory else None)
        (parts if parted else counts)[machine] += 1
    seen.nodes += [
        Node(host=host, machine=replace(machine, gpus=count), gone=OF_PARTS) for machine, count in parts.items()
    ]
    if host in seen.gpus:
        seen.notes.append(f"{host}: two files of nvidia-smi -q -x; {name} is taken")
    seen.gpus[host] = tuple(replace(machine, gpus=count) for machine, count in counts.items())


def _of_topo(text: str, host: str, name: str, seen: Recorded) -> None:
    """How the first GPU is joined to the others: `NV18` are 18 links."""
    row = next(line.split() for line in text.splitlines() if line.split()[:1] == ["GPU0"] and "X" in line.split())
    count = sum(1 for line in text.splitlines() if re.match(r"\s*GPU\d+\s", line) and "X" in line.split())
    links = [int(word[2:]) for word in row[1 : count + 1] if re.fullmatch(r"NV\d+", word)]
    switched = len(set(links)) == 1 and links[0] >= SWITCHED
    seen.nvlink[host] = (count, float(links[0] if switched else sum(links)))


def _of_ibstat(text: str, host: str, name: str, seen: Recorded) -> None:
    """Rates of the ports that are active."""
    rates = []
    for part in text.split("CA '")[1:]:
        card = part.split("'", 1)[0]
        for port in part.split("Port ")[1:]:
            if match := PORT.search(port):
                if match[1] == "Active":
                    rates.append(float(match[2]))
                else:
                    seen.notes.append(f"{host}: port {port.split(':', 1)[0]} of {card} is {match[1]}: left out")
    seen.network[host] = tuple(rates)


READERS: Mapping[str, Callable[[str, str, str, Recorded], None]] = {
    "smi": _of_smi,
    "kubectl": _of_kubectl,
    "scontrol": _of_scontrol,
    "sinfo": _of_sinfo,
    "topo": _of_topo,
    "ibstat": _of_ibstat,
}


def _joined(nodes: Sequence[Node], seen: Recorded) -> Iterator[Node]:
    """Yield nodes with what the files of their hosts say; a node of which none tells is as one that is listed alike."""
    details = {host: _details(host, seen) for host in (*seen.gpus, *seen.nvlink, *seen.network)}
    hosts = {node.host for node in nodes}
    for host in details:
        if host not in hosts:
            seen.notes.append(f"{host}: files tell of it, and no node of that name is listed")
    alike = {node.machine: details[node.host] for node in nodes if node.host in details and not node.gone}
    for node in nodes:
        if node.gone == OF_PARTS:
            yield node
            continue
        state = seen.states.get(node.host, node.gone)
        if bool(state) != bool(node.gone):
            seen.notes.append(f"{node.host}: scontrol and sinfo contradict each other; it is left out")
        gone = node.gone or state
        detail = details.get(node.host)
        if detail is None and not gone and (detail := alike.get(node.machine)) is not None:
            seen.notes.append(f"{node.host}: no file tells of it; it is taken to be as others that are listed alike")
        yield replace(node, machine=_filled(node, detail, seen) if detail else node.machine, gone=gone)


def _details(host: str, seen: Recorded) -> Details:
    groups, (count, links) = seen.gpus.get(host, ()), seen.nvlink.get(host, (0, None))
    listed = sum(group.gpus for group in groups)
    if listed and count and listed != count:
        seen.notes.append(f"{host}: nvidia-smi -q lists {listed} GPUs, topo -m {count}; {listed} are taken")
    return Details(groups, links, seen.network.get(host))


def _filled(node: Node, details: Details, seen: Recorded) -> MachineGroup:
    """Return a machine with the details of its host over what the listing says."""
    machine = node.machine
    stem = _stem(machine)
    same = [group for group in details.gpus if group == machine]  # as where nvidia-smi itself lists them
    same = same or [group for group in details.gpus if stem and _stem(group) == stem]
    chosen = same or (details.gpus if len(details.gpus) == 1 else ())
    if details.gpus and not same:
        types = ", ".join(f"{group.gpus} × {group.gpu}" for group in details.gpus)
        words = f"listed with {machine.gpus} × {machine.gpu or 'a GPU without a name'}, nvidia-smi says {types}"
        seen.notes.append(f"{node.host}: {words}" + (", which is taken" if chosen else ": the listing is taken"))
    elif chosen and chosen[0].gpus != machine.gpus:
        words = f"listed with {machine.gpus} GPUs, nvidia-smi says {chosen[0].gpus}; they are taken"
        seen.notes.append(f"{node.host}: {words}")
    if chosen:
        machine = replace(machine, gpu=chosen[0].gpu, gpus=chosen[0].gpus, gpu_memory_mib=chosen[0].gpu_memory_mib)
    if details.links is not None:
        gpu = known(machine)
        rate = LINK_GB_PER_SECOND.get(gpu.name[:1] if gpu else "", OLDER_LINK)
        machine = replace(machine, nvlink_gb_per_second=details.links * rate)
    return machine if details.network is None else replace(machine, network_gbps=details.network)


def _stem(machine: MachineGroup) -> str:
    """Return the name of a GPU without its size and slot (`A100` of A100-SXM-40), "" where it is not known."""
    gpu = known(machine)
    return gpu.name.split("-")[0] if gpu else ""
