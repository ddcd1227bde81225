"""Who tells what machines there are: this machine (`nvidia-smi` and the files of /sys and /proc), SLURM (`scontrol show
node`, in one line for each node or in several, and `sinfo`), and Kubernetes (`kubectl get nodes`, with the labels of
NVIDIA's GPU feature discovery (https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery), of
AMD's node labeller, of GKE or of Karpenter).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwright.discovery.document import OF_PARTS, Ask, MachineGroup, Node, known
from shardwright.spec.catalog.machines import machines

GPUS = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
NVLINK = ("nvidia-smi", "nvlink", "--status", "--id=0")
LINK = re.compile(r"Link \d+:\s*([0-9.]+) GB/s")
RATE = re.compile(r"([0-9.]+) Gb/sec")
KIBIBYTES = re.compile(r"MemTotal:\s*(\d+) kB")
SCONTROL = ("scontrol", "show", "nodes", "--oneliner")
SLURM_NODE = re.compile(r"(?m)^\s*NodeName=")
SLURM_FIELD = re.compile(r"(\w+)=(\S*)")
SLURM_GPU = re.compile(r"gpu:(?:(?P<name>[^:,()\s]+):)?(?P<count>\d+)")
# Parts of states (of `scontrol` in full, of `sinfo` in short) in which a node takes no new work.
SLURM_GONE = re.compile(
    r"DOWN|DRAIN|DRNG|FAIL|FUTURE|FUTR|NOT_RESPONDING|POWERED_DOWN|POWERING_DOWN|UNK|RESERVED|RESV|MAINT|INVAL|REBOOT|"
    r"BLOCKED|\*$"
)
HOSTS = re.compile(r"([^,\[]+)(?:\[([^\]]+)\])?([^,\[]*)(?:,|$)")
KUBECTL = ("kubectl", "get", "nodes", "--output", "json")
LABEL = "nvidia.com/gpu."
RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu")
NAMES = (
    *(LABEL + "product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator"),
    "karpenter.k8s.aws/instance-gpu-name",
)
GOOGLES: Mapping[str, str] = {  # names of GKE that others use for other parts, or not at all
    "nvidia-tesla-a100": "A100-SXM-40",
    "nvidia-tesla-v100": "V100-SXM2-16",
    "nvidia-h100-mega-80gb": "H100-SXM",
}
MACHINE_TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
OF_KUBERNETES = "node.kubernetes.io/"  # its own taints: what is wrong with a node
PARTS = "nvidia.com/mig-"
SHARED = "-SHARED"  # behind the name of a GPU that takes turns between pods
QUANTITY = re.compile(r"(\d+)([KMGT]i)?")
GIBIBYTES = {None: 1 / 1024**3, "Ki": 1 / 1024**2, "Mi": 1 / 1024, "Gi": 1.0, "Ti": 1024.0}


def local_nodes(ask: Ask) -> tuple[Node, ...]:
    """Return this machine, a node for each GPU type; nothing without `nvidia-smi`."""
    return tuple(Node(host="this machine", machine=machine) for machine in this_machine(ask))


def this_machine(ask: Ask, root: Path = Path("/")) -> tuple[MachineGroup, ...]:
    """Return this machine, a group for each GPU type; nothing without `nvidia-smi`. `root` is where /sys and /proc are.

    One port of `nvidia-smi nvlink --status` is told in one direction.
    """
    listing = ask(GPUS)
    if not listing:
        return ()
    rows = [line.rsplit(",", 1) for line in listing.splitlines() if "," in line]
    nvlink = nvlink_gb_per_second(ask)
    return tuple(
        MachineGroup(
            gpu=name.strip(),
            gpus=sum(1 for other, _ in rows if other == name),
            gpu_memory_mib=_number(memory),
            host_memory_gib=_host_memory_gib(root),
            nvlink_gb_per_second=nvlink,
            network_gbps=tuple(_network(root)),
        )
        for name, memory in dict(rows).items()
    )


def nvlink_gb_per_second(ask: Ask) -> float | None:
    """Return what all NVLink ports of the first GPU carry in one direction, 0 where it has none, None where nobody
    says."""
    status = ask(NVLINK)
    return None if status is None else sum(map(float, LINK.findall(status)))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # "[N/A]"


def _host_memory_gib(root: Path) -> float | None:
    match = KIBIBYTES.search(_text(root / "proc/meminfo"))
    return None if match is None else round(float(match[1]) / 1024**2, 1)


def _network(root: Path) -> Iterator[float]:
    """Yield the rates of active InfiniBand and RoCE ports; where there are none, of wired network cards that are up."""
    ports = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    rates = [RATE.search(_text(port / "rate")) for port in ports if "ACTIVE" in _text(port / "state")]
    if any(rates):
        yield from (float(rate[1]) for rate in rates if rate)
        return
    for card in sorted((root / "sys/class/net").glob("*")):
        megabits = _number(_text(card / "speed"))
        if (card / "device").exists() and _text(card / "operstate").strip() == "up" and megabits and megabits > 0:
            yield megabits / 1000.0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def slurm_nodes(ask: Ask) -> tuple[Node, ...]:
    """Return the nodes with GPUs; nothing without SLURM. SLURM knows neither the memory of a GPU nor the network."""
    return nodes_of_scontrol(ask(SCONTROL) or "")


def nodes_of_scontrol(listing: str) -> tuple[Node, ...]:
    """Return the nodes with GPUs of `scontrol show node`, a node for each GPU type of a machine."""
    starts = [match.start() for match in SLURM_NODE.finditer(listing)]
    blocks = (listing[start:end] for start, end in zip(starts, [*starts[1:], len(listing)], strict=False))
    return tuple(node for block in blocks for node in _slurm_nodes(dict(SLURM_FIELD.findall(block))))


def nodes_of_sinfo(listing: str) -> tuple[Node, ...]:
    """Return the nodes with GPUs of `sinfo`, whose columns its first line names: NODELIST, STATE and, where it was
    asked for, GRES and MEMORY."""
    lines = [line.split() for line in listing.splitlines() if line.strip()]
    head = [name.upper() for name in lines[0]] if lines else []
    nodes: dict[tuple[str, str], Node] = {}
    for line in lines[1:]:
        row = dict(zip(head, line, strict=False))
        for host in hosts(row.get("NODELIST", "")):
            fields = {"NodeName": host, "State": row.get("STATE", ""), "Gres": row.get("GRES", "")}
            for node in _slurm_nodes({**fields, "RealMemory": row.get("MEMORY", "").rstrip("+")}):
                nodes[host, node.machine.gpu] = node  # a line for each partition that it is in
    return tuple(nodes.values())


def states_of_sinfo(listing: str) -> dict[str, str]:
    """Return the state of every node that `sinfo` lists, "" where it is there for work."""
    lines = [line.split() for line in listing.splitlines() if line.strip()]
    head = [name.upper() for name in lines[0]] if lines else []
    rows = (dict(zip(head, line, strict=False)) for line in lines[1:])
    return {host: _slurm_gone(row.get("STATE", "")) for row in rows for host in hosts(row.get("NODELIST", ""))}


def hosts(nodelist: str) -> Iterator[str]:
    """Yield the hosts of a list such as `gpu[01-03,7],login1`."""
    for match in HOSTS.finditer(nodelist):
        start, ranges, end = match.groups()
        for part in ranges.split(",") if ranges else [""]:
            first, dash, last = part.partition("-")
            if not dash:
                yield f"{start}{part}{end}"
            elif first.isdigit() and last.isdigit():
                numbers = range(int(first), min(int(last), int(first) + 100_000) + 1)
                yield from (f"{start}{number:0{len(first)}d}{end}" for number in numbers)


def _slurm_nodes(fields: Mapping[str, str]) -> Iterator[Node]:
    memory = fields.get("RealMemory", "")
    features = fields.get("AvailableFeatures", fields.get("ActiveFeatures", "")).split(",")
    named = next((word for word in features if word and known(MachineGroup(gpu=word, gpus=1))), "")
    for match in SLURM_GPU.finditer(fields.get("Gres", "")):
        machine = MachineGroup(
            gpu=match["name"] or named,
            gpus=int(match["count"]),
            host_memory_gib=round(int(memory) / 1024.0, 1) if memory.isdigit() else None,
        )
        yield Node(host=fields.get("NodeName", ""), machine=machine, gone=_slurm_gone(fields.get("State", "")))


def _slurm_gone(state: str) -> str:
    return state if SLURM_GONE.search(state.upper()) else ""


def kubernetes_nodes(ask: Ask) -> tuple[Node, ...]:
    """Return the nodes with GPUs; nothing without Kubernetes. The network is not seen, nor NVLink."""
    return nodes_of_kubectl(ask(KUBECTL) or "{}")


def nodes_of_kubectl(listing: str) -> tuple[Node, ...]:
    """Return the nodes with GPUs of `kubectl get nodes --output json`, nothing for any other text."""
    try:
        document = json.loads(listing)
        items = document.get("items", [document] if document.get("kind") == "Node" else [])
        return tuple(node for item in items for node in _kubernetes_nodes(item))
    except (ValueError, AttributeError, TypeError):
        return ()  # no answer of kubectl


def _kubernetes_nodes(item: Mapping[str, Any]) -> Iterator[Node]:
    """Yield a node with its whole GPUs, and with the parts (MIG) that it has of each size."""
    labels = item.get("metadata", {}).get("labels", {})
    host = str(item.get("metadata", {}).get("name") or labels.get("kubernetes.io/hostname", ""))
    status = item.get("status", {})
    capacity, there = status.get("capacity", {}), status.get("allocatable", {})
    gone = _kubernetes_gone(item)
    mebibytes = str(labels.get(LABEL + "memory", ""))
    machine = MachineGroup(
        gpu=_name(labels),
        gpus=0,
        gpu_memory_mib=float(mebibytes) if mebibytes.isdigit() else None,
        host_memory_gib=_gibibytes(str(capacity.get("memory", ""))),
    )
    for name, count in capacity.items():
        if name.startswith(PARTS) and _whole(count):
            parts = replace(machine, gpu=f"{machine.gpu} {name.removeprefix(PARTS)}", gpus=_whole(count))
            yield Node(host=host, machine=parts, gone=OF_PARTS)
    turns = max(_whole(labels.get(LABEL + "replicas")), 1)  # that pods take on a GPU, in the capacity alone
    counts = [(name, -(-_whole(capacity[name]) // turns)) for name in RESOURCES if name in capacity]
    count = max((number for _, number in counts), default=_whole(labels.get(LABEL + "count")))
    if not count:
        return
    free = max((-(-_whole(there[name]) // turns) for name, _ in counts if name in there), default=count)
    if 0 < free < count:
        note = f"{host}: {free} of {count} GPUs can be allocated; they are taken"
        yield Node(host=host, machine=replace(machine, gpus=free), gone=gone, notes=(note,))
    else:
        yield Node(host=host, machine=replace(machine, gpus=count), gone=gone or ("" if free else "no GPU allocatable"))


def _kubernetes_gone(item: Mapping[str, Any]) -> str:
    """Return why a node takes no new work, "" where it does."""
    if item.get("spec", {}).get("unschedulable"):
        return "cordoned"
    taints = item.get("spec", {}).get("taints") or ()
    taint_key = next((str(taint.get("key")) for taint in taints if str(taint.get("key")).startswith(OF_KUBERNETES)), "")
    if taint_key:
        return taint_key.removeprefix(OF_KUBERNETES)
    conditions = item.get("status", {}).get("conditions", [])
    ready = [condition.get("status") for condition in conditions if condition.get("type") == "Ready"]
    return "NotReady" if ready and ready[0] != "True" else ""


def _name(labels: Mapping[str, object]) -> str:
    name = str(next((labels[name] for name in NAMES if labels.get(name)), ""))
    if name:
        return GOOGLES.get(name, name.removesuffix(SHARED))
    sold = machines()  # which a node that nobody has looked into says of itself
    return next((sold[type_name].gpu for label in MACHINE_TYPES if (type_name := str(labels.get(label))) in sold), "")


def _whole(text: object) -> int:
    return int(str(text)) if str(text).isdigit() else 0


def _gibibytes(quantity: str) -> float | None:
    match = QUANTITY.fullmatch(quantity)
    return None if match is None else round(int(match[1]) * GIBIBYTES[match[2]], 1)
