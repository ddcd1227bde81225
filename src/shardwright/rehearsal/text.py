"""A rehearsal on a terminal: for each rank memory, work and messages beside what was expected."""

from __future__ import annotations

from shardwright.rehearsal.document import RankRehearsal, Rehearsal, messages, rows
from shardwright.rehearsal.trainers import TRAINERS
from shardwright.reports.text.layout import table
from shardwright.units import GIBIBYTE, TERA, counted, format_bytes

PASSING = "activations, buffers, temporaries"
NAMES = {
    "parameters": "weights", "state": "optimizer state", "passing": PASSING, "tensors": "all tensors at the peak",
}  # fmt: skip
WITH_MASTERS = {"state": "fp32 weights and optimizer state", "passing": f"gathered weights, {PASSING}"}


def rehearsal_text(rehearsal: Rehearsal) -> str:
    words = TRAINERS[rehearsal.trainer].words
    title = f"One step rehearsed in the code of {words}, {counted(len(rehearsal.ranks), 'rank')}, on fake tensors"
    return "\n\n".join([title, *(_rank_text(rank) for rank in rehearsal.ranks), _verdict(rehearsal)])


def _rank_text(rank: RankRehearsal) -> str:
    figures = rank.figures
    cost = f"{figures['seconds']:.0f} s, {format_bytes(figures['host_bytes'])} of host memory"
    parts = [f"{rank.place.name}, {rank.place.gpu}: {cost}", _memory(rank), _peaks(rank), _work(rank)]
    if figures["shims"]:
        parts.append(_shims(rank))
    parts.append("\n".join(f"  {choice}" for choice in (*figures["choices"], f"fake devices: {figures['layer']}")))
    return "\n\n".join(parts)


def _memory(rank: RankRehearsal) -> str:
    names = NAMES | (WITH_MASTERS if rank.figures.get("masters") else {})
    memory, total = rank.expected.memory, rank.total_bytes
    lines = [
        *(
            (names.get(kind, kind), _gib(size), _gib(other), _difference(size, other))
            for kind, size, other in rows(rank)
        ),
        ("context, work space, fragmentation", "", _gib(memory.context_bytes), ""),
        ("all", _gib(total), _gib(memory.total_bytes), _difference(total, memory.total_bytes)),
        (f"memory of {rank.place.gpu}", "", _gib(memory.capacity_bytes), ""),
    ]
    return table(("GiB", "rehearsed", "account", "account is"), lines, words=("GiB",))


def _peaks(rank: RankRehearsal) -> str:
    kinds = list(rank.figures["kinds"])
    lines = [
        (phase["phase"], _gib(phase["peak_bytes"]), *(_gib(phase["kinds"][kind]) for kind in kinds))
        for phase in rank.figures["phases"]
    ]
    return table(("peak of, GiB", "tensors", *kinds), lines, words=("peak of, GiB",))


def _work(rank: RankRehearsal) -> str:
    flops, other = rank.figures["flops"], rank.expected.flops
    lines = [("computes", "", "", f"{flops / TERA:.4g} TFLOP", f"{other / TERA:.4g}", _difference(flops, other))]
    for message in messages(rank):
        wanted = message["expected_bytes"]
        lines.append(
            (
                f"{message['type']} ({message['purpose']})" if message["purpose"] else message["type"],
                str(message["ranks"]),
                str(message["count"]),
                f"{message['bytes'] / 2**20:.1f} MiB",
                "" if wanted is None else f"{wanted / 2**20:.1f}",
                "" if wanted is None else _difference(message["bytes"], wanted),
            )
        )
    return table(("in a step", "ranks", "times", "rehearsed", "account", "account is"), lines, words=("in a step",))


def _shims(rank: RankRehearsal) -> str:
    lines = [
        f"  {name}: {shim['why']} ({shim['bytes'] / rank.tensor_bytes:.1%} of the bytes at the peak)"
        for name, shim in rank.figures["shims"].items()
    ]
    return "\n".join(("  Shims, in place of what fake tensors cannot do:", *lines))


def _verdict(rehearsal: Rehearsal) -> str:
    fullest = max(rehearsal.ranks, key=lambda rank: rank.total_bytes / rank.expected.memory.capacity_bytes)
    total, capacity = fullest.total_bytes, fullest.expected.memory.capacity_bytes
    fits = "fits" if rehearsal.fits else "does not fit"
    return (
        f"The step starts and ends. The plan {fits}: {fullest.place.name} takes {format_bytes(total)} of "
        f"{format_bytes(capacity)}, of which {format_bytes(fullest.tensor_bytes)} are tensors that were counted and "
        "the rest is the account's."
    )


def _gib(size: float) -> str:
    return f"{size / GIBIBYTE:.2f}"


def _difference(measured: float, wanted: float) -> str:
    return "" if not measured else f"{wanted / measured - 1.0:+.1%}"
