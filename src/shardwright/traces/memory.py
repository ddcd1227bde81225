"""What filled a GPU: snapshots of PyTorch's CUDA allocator, and its messages of full memory in any wording since 1.10.

A snapshot (`torch.cuda.memory._dump_snapshot`) is a pickle. A pickle is a program that may call anything; here only the
instructions that build plain containers, texts and numbers are carried out, by a loop of our own over
`pickletools.genops`, which executes nothing. Any other instruction refuses the file by name.
"""

from __future__ import annotations

import pickletools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from shardwright.errors import SpecError, bad
from shardwright.records import record
from shardwright.units import GIBIBYTE

LARGEST_BYTES = 2_000_000_000
PLAIN = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE"),
    *("BINBYTES", "BINBYTES8", "SHORT_BINBYTES", "BYTEARRAY8"),
}
MADE: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set,
}  # fmt: skip
KEPT, FETCHED = {"MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
# Of how many things on top of the stack an instruction makes something; None: of all since the mark.
JOINED: Mapping[str, int | None] = {
    "SETITEM": 2, "APPEND": 1, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "POP": 1, "SETITEMS": None, "APPENDS": None,
    "ADDITEMS": None, "DICT": None, "LIST": None, "TUPLE": None, "FROZENSET": None,
}  # fmt: skip
OURS = ("torch/", "site-packages/", "lib/python", "??")
HERE = 6  # frames that are looked at for a name
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


@record
class Allocation:
    """Bytes of live tensors that one place of the program made, and how many they are."""

    place: str
    bytes: int
    count: int


@record
class MemorySnapshot:
    """Memory of the devices of a process: what the allocator reserved, what tensors have of it, and what lies between.

    `peak_bytes` is the most that tensors had over the recorded history, None without one; `retries` counts how often
    the allocator gave memory back to the driver to try again. `largest` are the places with most memory, where the
    snapshot has frames.
    """

    device: int
    reserved_bytes: int
    allocated_bytes: int
    peak_bytes: int | None
    segments: int
    retries: int
    out_of_memory: int
    largest: tuple[Allocation, ...]


def read_snapshot(path: Path) -> tuple[MemorySnapshot, ...]:
    """Return the memory of each device of a snapshot. Raises SpecError for a file that is none, and for a pickle that
    has more in it than plain data."""
    if path.stat().st_size > LARGEST_BYTES:
        raise bad(str(path), f"is larger than {LARGEST_BYTES:,} bytes", "record fewer entries (max_entries)")
    value = plain_pickle(path.read_bytes(), str(path))
    segments = value.get("segments") if isinstance(value, dict) else value
    if not isinstance(segments, list) or not all(isinstance(s, dict) and "blocks" in s for s in segments):
        raise bad(str(path), "is no snapshot of memory", "write one with torch.cuda.memory._dump_snapshot")
    traces = value.get("device_traces", []) if isinstance(value, dict) else []
    devices = sorted({int(segment.get("device", 0)) for segment in segments})
    return tuple(_of_device(device, segments, traces) for device in devices)


def plain_pickle(data: bytes, name: str) -> Any:
    """Return what a pickle of plain containers, texts and numbers holds. Raises SpecError where it has anything else in
    it, or is damaged."""
    try:
        return _built(data, name)
    except SpecError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise bad(name, f"is no whole pickle: {error!s:.80}", "the file seems to be cut off: write it anew") from None


def _built(data: bytes, name: str) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    for opcode, argument, _ in pickletools.genops(data):
        code, value = opcode.name, cast(Any, argument)
        if code in PLAIN:
            stack.append(value)
        elif code in MADE:
            stack.append(MADE[code]())
        elif code == "MARK":
            marks.append(len(stack))
        elif code in KEPT:
            memo[len(memo) if code == "MEMOIZE" else int(value)] = stack[-1]
        elif code in FETCHED:
            stack.append(memo[int(value)])
        elif code in JOINED:
            start = marks.pop() if JOINED[code] is None else len(stack) - cast(int, JOINED[code])
            items = stack[start:]
            del stack[start:]
            _join(stack, code, items)
        elif code == "STOP":
            return stack.pop()
        elif code not in ("PROTO", "FRAME"):
            message = f"asks to run code ({code}{'' if argument is None else f' {argument}'}): it is not read"
            raise bad(name, message, "write a snapshot with torch.cuda.memory._dump_snapshot")
    raise ValueError("it has no end")


def _join(stack: list[Any], code: str, items: list[Any]) -> None:
    """Do to what lies on top, or put on top, what an instruction makes of `items`."""
    if code in ("SETITEM", "SETITEMS"):
        stack[-1].update(zip(items[::2], items[1::2], strict=True))
    elif code in ("APPEND", "APPENDS"):
        stack[-1].extend(items)
    elif code == "ADDITEMS":
        stack[-1].update(items)
    elif code == "DICT":
        stack.append(dict(zip(items[::2], items[1::2], strict=True)))
    elif code != "POP":
        stack.append({"LIST": list, "FROZENSET": frozenset}.get(code, tuple)(items))


def _of_device(device: int, segments: Sequence[Mapping[str, Any]], traces: Sequence[Any]) -> MemorySnapshot:
    here = [segment for segment in segments if int(segment.get("device", 0)) == device]
    blocks = [block for segment in here for block in segment["blocks"]]
    live = [block for block in blocks if str(block.get("state", "")).startswith("active")]
    history = traces[device] if device < len(traces) and isinstance(traces[device], list) else []
    actions = Counter(str(entry.get("action")) for entry in history if isinstance(entry, dict))
    allocated = sum(int(block["size"]) for block in live)
    return MemorySnapshot(
        device=device,
        reserved_bytes=sum(int(segment["total_size"]) for segment in here),
        allocated_bytes=allocated,
        peak_bytes=_peak(allocated, history),
        segments=len(here),
        retries=_retries(history),
        out_of_memory=actions["oom"],
        largest=_largest(live),
    )


def _peak(at_end: int, history: Sequence[Any]) -> int | None:
    """Return the most bytes that tensors had, going back from the end."""
    peak, now = at_end, at_end
    seen = False
    for entry in reversed(history):
        action, size = entry.get("action"), int(entry.get("size", 0))
        if action == "alloc":
            now -= size
        elif action == "free_completed":
            now += size
        seen = seen or action == "alloc"
        peak = max(peak, now)
    return peak if seen else None


def _retries(history: Sequence[Any]) -> int:
    """Return how often segments were given back to the driver just before others were asked of it."""
    acts = [entry.get("action") for entry in history if entry.get("action") in ("segment_free", "segment_alloc")]
    return sum(pair == ("segment_free", "segment_alloc") for pair in pairwise(acts))


def _largest(live: Sequence[Mapping[str, Any]], most: int = 8) -> tuple[Allocation, ...]:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for block in live:
        place = next(_places(block), None)
        if place is not None:
            sizes[place] += int(block["size"])
            counts[place] += 1
    rows = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:most]
    return tuple(Allocation(place=place, bytes=size, count=counts[place]) for place, size in rows)


def _places(block: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a block was made: frames of the user's program first, then any."""
    history = [entry.get("frames") for entry in block.get("history", []) if entry.get("frames")]
    frames: list[Any] = block.get("frames") or next(iter(history), [])
    words = [
        f"{frame.get('name')} ({str(frame.get('filename')).rpartition('/')[2]}:{frame.get('line')})"
        for frame in frames
        if not any(part in str(frame.get("filename")) for part in OURS)
    ]
    yield from words or [str(frame.get("name")) for frame in frames[:HERE]]


@record
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
