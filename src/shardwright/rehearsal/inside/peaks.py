"""What a meter's events come to: peaks by phase, by kind and by shim, and the course of memory over a step."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from shardwright.rehearsal.inside.meter import KINDS, PHASES, ROUNDING, Block, Meter

POINTS = 120  # of the course of memory, each the highest of its part of the step
LARGEST = 8


def measured(meter: Meter) -> dict[str, Any]:
    """Return what a step took, as plain data: bytes at the peak by kind and by shim, the peak of each phase, the course
    of memory, FLOPs and messages."""
    totals, highest = _totals(meter)
    top = max(highest.values(), key=lambda entry: entry[0], default=(0, 0))
    alive = _alive_at(meter, top[1])
    return {
        "peak_bytes": top[0],
        "rounding_bytes": sum(-block.size % ROUNDING for block in alive),
        "kinds": _by_kind(alive),
        "shims": dict(sorted(_summed(alive, lambda block: block.shim).items())),
        "largest": _largest(alive),
        "phases": [
            {"phase": PHASES[phase], "peak_bytes": size, "kinds": _by_kind(_alive_at(meter, place))}
            for phase, (size, place) in sorted(highest.items())
        ],
        "course": _course(meter, totals),
        "flops": sum(meter.counts.flops.values()),
        "flops_by_operator": dict(sorted(meter.counts.flops.items())),
        "messages": [
            {
                "type": kind,
                "purpose": words,
                "ranks": ranks,
                "count": count,
                "bytes": meter.counts.message_bytes[kind, words, ranks],
            }
            for (kind, words, ranks), count in sorted(meter.counts.messages.items())
        ],
        "operators": meter.counts.operators,
        "guessed_numbers": sum(meter.counts.guessed.values()),
    }


def _totals(meter: Meter) -> tuple[list[int], dict[int, tuple[int, int]]]:
    """Return the live bytes after each event of the step, and for each phase its highest and after how many events."""
    live, totals = 0, []
    highest: dict[int, tuple[int, int]] = {}
    for place, (number, phase) in enumerate(meter.events, 1):
        size = meter.blocks[abs(number) - 1].size
        live += size if number > 0 else -size
        if place <= meter.begun:
            continue
        totals.append(live)
        if live > highest.get(phase, (-1, 0))[0]:
            highest[phase] = (live, place)
    return totals, highest


def _alive_at(meter: Meter, place: int) -> list[Block]:
    alive: dict[int, Block] = {}
    for number, _ in meter.events[:place]:
        if number > 0:
            alive[number] = meter.blocks[number - 1]
        else:
            del alive[-number]
    return list(alive.values())


def _summed(blocks: list[Block], key: Any) -> Counter[str]:
    result: Counter[str] = Counter()
    for block in blocks:
        if key(block) is not None:
            result[key(block)] += block.size
    return result


def _by_kind(blocks: list[Block]) -> dict[str, int]:
    result = _summed(blocks, lambda block: block.kind)
    return {kind: result[kind] for kind in KINDS}


def _largest(blocks: list[Block]) -> list[dict[str, Any]]:
    """Return what takes most at the peak, alike blocks together."""
    sizes: Counter[tuple[str, str, tuple[int, ...], str]] = Counter()
    counts: Counter[tuple[str, str, tuple[int, ...], str]] = Counter()
    for block in blocks:
        key = (block.kind, block.operator, block.shape, block.dtype)
        sizes[key] += block.size
        counts[key] += 1
    names = ("kind", "operator", "shape", "dtype")
    return [
        dict(zip(names, (key[0], key[1], list(key[2]), key[3]), strict=True)) | {"count": counts[key], "bytes": size}
        for key, size in sizes.most_common(LARGEST)
    ]


def _course(meter: Meter, totals: list[int]) -> list[dict[str, Any]]:
    """Return the step in equal parts of its events: the phase and the bytes where memory is highest in each."""
    if not totals:
        return []
    length = max(-(-len(totals) // POINTS), 1)
    result = []
    for start in range(0, len(totals), length):
        place = max(range(start, min(start + length, len(totals))), key=totals.__getitem__)
        phase = meter.events[meter.begun + place][1]
        result.append({"event": place, "phase": PHASES[phase], "bytes": totals[place]})
    return result


def blocks_at_peak(meter: Meter) -> list[dict[str, Any]]:
    """Return every block at the peak of the step, for tests and for looking closely."""
    _, highest = _totals(meter)
    _, place = max(highest.values(), default=(0, 0))
    return [asdict(block) | {"kind": block.kind} for block in _alive_at(meter, place)]
