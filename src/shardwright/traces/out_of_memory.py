"""What a message of full memory says, of PyTorch's CUDA allocator in any of its wordings since 1.10."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardwright.units import GIBIBYTE

UNITS = {"bytes": 1.0, "B": 1.0, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": GIBIBYTE, "TiB": 1024.0 * GIBIBYTE}
SIZE = r"([\d.]+) ?(bytes|[KMGT]iB|B)"
FULL = re.compile(r"(CUDA|HIP|XPU) out of memory|OutOfMemoryError|CUDA error: out of memory")
FIGURES = {
    "wanted_bytes": (rf"Tried to allocate {SIZE}",),
    "capacity_bytes": (rf"total capacity (?:of|is) {SIZE}", rf"\(GPU \d+; {SIZE} total capacity"),
    "free_bytes": (rf"of which {SIZE} is free", rf"total capacity; .*?; {SIZE} free"),
    "process_bytes": (rf"this process has {SIZE} memory in use",),
    "allocated_bytes": (rf"allocated memory {SIZE} is allocated by PyTorch", rf"{SIZE} (?:is )?(?:already )?allocated"),
    "unused_bytes": (rf"{SIZE} is reserved by PyTorch but unallocated",),
    "reserved_bytes": (rf"{SIZE} reserved in total by PyTorch",),
}
DEVICE = re.compile(r"GPU (\d+)")
RANK = re.compile(r"\[?rank ?(\d+)\]?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """What was wanted and what there was, in bytes; None where the message does not say."""

    device: int | None
    rank: int | None
    wanted_bytes: float | None
    capacity_bytes: float | None
    free_bytes: float | None
    process_bytes: float | None
    allocated_bytes: float | None
    unused_bytes: float | None

    @property
    def others_bytes(self) -> float | None:
        """What neither this process nor free memory accounts for: other processes, and the driver's own."""
        if self.capacity_bytes is None or self.free_bytes is None or self.process_bytes is None:
            return None
        return max(self.capacity_bytes - self.free_bytes - self.process_bytes, 0.0)


def out_of_memory(text: str) -> OutOfMemory | None:
    """Return what the first message of full memory in a text says, None where there is none."""
    match = FULL.search(text)
    if match is None:
        return None
    line = text[text.rfind("\n", 0, match.start()) + 1 : match.end() + 1200]
    sizes = {name: _size(patterns, line) for name, patterns in FIGURES.items()}
    reserved = sizes.pop("reserved_bytes")
    if sizes["unused_bytes"] is None and reserved is not None and sizes["allocated_bytes"] is not None:
        sizes["unused_bytes"] = max(reserved - sizes["allocated_bytes"], 0.0)
    device, rank = DEVICE.search(line), RANK.search(line)
    return OutOfMemory(device=int(device[1]) if device else None, rank=int(rank[1]) if rank else None, **sizes)


def _size(patterns: tuple[str, ...], text: str) -> float | None:
    for pattern in patterns:
        if match := re.search(pattern, text, re.DOTALL):
            return float(match[1]) * UNITS[match[2]]
    return None
