"""The nodes of a SLURM cluster: `scontrol show nodes --oneliner`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardwright.discovery.document import Ask, MachineGroup, grouped

NODES = ("scontrol", "show", "nodes", "--oneliner")
FIELD = re.compile(r"(\w+)=(\S*)")
GPU = re.compile(r"gpu:(?:(?P<name>[^:,()\s]+):)?(?P<count>\d+)")
GONE = ("DOWN", "DRAIN", "FAIL", "FUTURE", "NOT_RESPONDING", "POWERED_DOWN", "UNKNOWN")


def slurm_machines(ask: Ask, partition: str | None = None) -> tuple[MachineGroup, ...]:
    """Return the machines with GPUs of all nodes that are up, or of those of one partition; nothing without SLURM.
    SLURM knows neither the memory of a GPU nor the network."""
    return grouped(_machines(ask(NODES) or "", partition))


def _machines(listing: str, partition: str | None) -> Iterator[MachineGroup]:
    for line in listing.splitlines():
        fields = dict(FIELD.findall(line))
        if any(word in fields.get("State", "") for word in GONE):
            continue
        if partition is not None and partition not in fields.get("Partitions", "").split(","):
            continue
        memory = fields.get("RealMemory", "")
        for match in GPU.finditer(fields.get("Gres", "")):
            yield MachineGroup(
                gpu=match["name"] or "",
                gpus=int(match["count"]),
                host_memory_gib=round(int(memory) / 1024.0, 1) if memory.isdigit() else None,
            )
