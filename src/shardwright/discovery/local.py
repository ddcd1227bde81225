"""This machine: `nvidia-smi` and the files of /sys and /proc."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from shardwright.discovery.document import Ask, MachineGroup, Node

GPUS = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
NVLINK = ("nvidia-smi", "nvlink", "--status", "--id=0")
LINK = re.compile(r"Link \d+:\s*([0-9.]+) GB/s")
RATE = re.compile(r"([0-9.]+) Gb/sec")
KIBIBYTES = re.compile(r"MemTotal:\s*(\d+) kB")


def local_nodes(ask: Ask) -> tuple[Node, ...]:
    """Return this machine, a node for each GPU type; nothing without `nvidia-smi`."""
    return tuple(Node(host="", machine=machine) for machine in this_machine(ask))


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
