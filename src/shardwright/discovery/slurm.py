"""The nodes of a SLURM cluster: `scontrol show node`, in one line for each node or in several, and `sinfo`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from shardwright.discovery.document import Ask, MachineGroup, Node, known

NODES = ("scontrol", "show", "nodes", "--oneliner")
NODE = re.compile(r"(?m)^\s*NodeName=")
FIELD = re.compile(r"(\w+)=(\S*)")
GPU = re.compile(r"gpu:(?:(?P<name>[^:,()\s]+):)?(?P<count>\d+)")
# Parts of states (of `scontrol` in full, of `sinfo` in short) in which a node takes no new work.
GONE = re.compile(
    r"DOWN|DRAIN|DRNG|FAIL|FUTURE|FUTR|NOT_RESPONDING|POWERED_DOWN|POWERING_DOWN|UNK|RESERVED|RESV|MAINT|INVAL|REBOOT|"
    r"BLOCKED|\*$"
)
HOSTS = re.compile(r"([^,\[]+)(?:\[([^\]]+)\])?([^,\[]*)(?:,|$)")


def slurm_nodes(ask: Ask) -> tuple[Node, ...]:
    """Return the nodes with GPUs; nothing without SLURM. SLURM knows neither the memory of a GPU nor the network."""
    return nodes_of_scontrol(ask(NODES) or "")


def nodes_of_scontrol(listing: str) -> tuple[Node, ...]:
    """Return the nodes with GPUs of `scontrol show node`, a node for each GPU type of a machine."""
    starts = [match.start() for match in NODE.finditer(listing)]
    blocks = (listing[start:end] for start, end in zip(starts, [*starts[1:], len(listing)], strict=False))
    return tuple(node for block in blocks for node in _nodes(dict(FIELD.findall(block))))


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
            for node in _nodes({**fields, "RealMemory": row.get("MEMORY", "").rstrip("+")}):
                nodes[host, node.machine.gpu] = node  # a line for each partition that it is in
    return tuple(nodes.values())


def states_of_sinfo(listing: str) -> dict[str, str]:
    """Return the state of every node that `sinfo` lists, "" where it is there for work."""
    lines = [line.split() for line in listing.splitlines() if line.strip()]
    head = [name.upper() for name in lines[0]] if lines else []
    rows = (dict(zip(head, line, strict=False)) for line in lines[1:])
    return {host: _gone(row.get("STATE", "")) for row in rows for host in hosts(row.get("NODELIST", ""))}


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


def _nodes(fields: Mapping[str, str]) -> Iterator[Node]:
    memory = fields.get("RealMemory", "")
    features = fields.get("AvailableFeatures", fields.get("ActiveFeatures", "")).split(",")
    named = next((word for word in features if word and known(MachineGroup(gpu=word, gpus=1))), "")
    for match in GPU.finditer(fields.get("Gres", "")):
        machine = MachineGroup(
            gpu=match["name"] or named,
            gpus=int(match["count"]),
            host_memory_gib=round(int(memory) / 1024.0, 1) if memory.isdigit() else None,
        )
        yield Node(host=fields.get("NodeName", ""), machine=machine, gone=_gone(fields.get("State", "")))


def _gone(state: str) -> str:
    return state if GONE.search(state.upper()) else ""
