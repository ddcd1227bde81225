"""What the time of a rank went to: computing, each kind of communication hidden and exposed, the host, data, the
update, copies. All seconds are of one step.

Times are arrays [N, 2] of begin and end, in seconds: sorted, and none touches another. What kind of work a kernel is
shows in its name: the first row of `data/kernels.csv` that matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, lru_cache

import numpy as np

from shardwright.arrays import Array, Bools, Floats, Ints
from shardwright.files import shipped_table
from shardwright.records import record

DRAWN = 400  # parts of a step that a timeline tells apart
NOTHING: Floats = np.zeros((0, 2))
COMPUTE, COPY = "compute", "copy"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast", "other_collective")


@record
class Spans:
    """Work of a device, [N] each: begin and end in seconds, the code of its kind in `kinds`, of its group in `groups`
    (name and ranks of a collective's process group, where they are said), and whether the update launched it."""

    begin: Floats
    end: Floats
    kind: Ints
    group: Ints
    update: Bools
    kinds: tuple[str, ...]
    groups: tuple[tuple[str, int], ...]


@record
class Activity:
    """What a rank did in `steps` steps from `begin` to `end`; `counted` says whether the trace marks its steps.

    `device` is the work of its device. `host` maps what the host did (`data`: waited for samples, `allocate`: asked the
    driver for memory, or gave it back) to times, `allocations` counts the latter. `passes` are seconds of passes by
    (kind, virtual stage), of traces of `train`.
    """

    rank: int
    source: str
    begin: float
    end: float
    steps: int
    counted: bool
    device: Spans
    host: Mapping[str, Floats] = field(default_factory=dict)
    allocations: int = 0
    passes: Mapping[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)
    on_gpu: bool = True


@record
class Collective:
    """A kind of communication of one process group in a step: how often, how long in all, and how much of that ran
    beside computing and how much did not. `group` is empty and `ranks` 0 where the trace does not say."""

    kind: str
    group: str
    ranks: int
    calls: float
    seconds: float
    hidden_seconds: float
    exposed_seconds: float


@record
class RankFigures:
    """The step of a rank. Computing, exposed communication, copies, data and idle time add up to `step_seconds`.

    `compute_seconds` has the update in it, which takes `optimizer_seconds`. `idle_seconds` are those in which neither
    the device worked nor the host waited for data; in `allocation_seconds` of them the host was in the driver for
    memory. `launches` counts kernels, `irregularity` is how far equal passes of the rank differ: the 90th percentile
    over the median, less 1.
    `timeline` has what the rank did in one step, coarsely: (compute, communication or data, begin, end).
    """

    rank: int
    source: str
    steps: int
    counted: bool
    step_seconds: float
    compute_seconds: float
    optimizer_seconds: float
    copy_seconds: float
    data_seconds: float
    idle_seconds: float
    allocation_seconds: float
    allocations: float
    launches: float
    collectives: tuple[Collective, ...]
    irregularity: float | None = None
    on_gpu: bool = True
    timeline: tuple[tuple[str, float, float], ...] = ()

    @property
    def exposed_seconds(self) -> float:
        """Communication that nothing hides."""
        return sum(call.exposed_seconds for call in self.collectives)


def figures(activity: Activity) -> RankFigures:
    window = np.array([[activity.begin, activity.end]])
    device, count = activity.device, float(activity.steps)
    codes = {name: code for code, name in enumerate(device.kinds)}
    of_collective = np.isin(device.kind, [codes[name] for name in COLLECTIVES if name in codes])
    of_copy = device.kind == codes.get(COPY, -1)

    def times(mask: Bools) -> Floats:
        return both(union(device.begin[mask], device.end[mask]), window)

    computing, copying = times(~of_collective & ~of_copy), times(of_copy)
    talking = times(of_collective)
    busy = either(computing, talking)
    copies = less(copying, busy)
    idle = less(window, either(busy, copying))
    data = both(activity.host.get("data", NOTHING), idle)
    allocating = both(activity.host.get("allocate", NOTHING), less(idle, data))
    inside = (device.begin < activity.end) & (device.end > activity.begin)
    calls = _collectives(device, of_collective & inside, window, computing, count)
    scale = seconds(less(talking, computing)) / count
    exposed = sum(call.exposed_seconds for call in calls)
    if exposed > scale > 0.0:  # several at a time: each has its share of the time
        calls = tuple(replace(call, exposed_seconds=call.exposed_seconds * scale / exposed) for call in calls)
    return RankFigures(
        rank=activity.rank,
        source=activity.source,
        steps=activity.steps,
        counted=activity.counted,
        step_seconds=seconds(window) / count,
        compute_seconds=seconds(computing) / count,
        optimizer_seconds=seconds(times(device.update & ~of_collective)) / count,
        copy_seconds=seconds(copies) / count,
        data_seconds=seconds(data) / count,
        idle_seconds=seconds(less(idle, data)) / count,
        allocation_seconds=seconds(allocating) / count,
        allocations=activity.allocations / count,
        launches=float((inside & ~of_copy).sum()) / count,
        collectives=calls,
        irregularity=_irregularity(activity.passes),
        on_gpu=activity.on_gpu,
        timeline=_timeline(activity, {"compute": computing, "communication": talking, "data": data}),
    )


def _timeline(activity: Activity, kinds: Mapping[str, Floats]) -> tuple[tuple[str, float, float], ...]:
    """Return the first step, with gaps and spans left out that are too short to be drawn."""
    step = (activity.end - activity.begin) / activity.steps
    first = np.array([[activity.begin, activity.begin + step]])
    short = step / DRAWN
    rows = []
    for name, spans in kinds.items():
        inside = both(spans, first) - activity.begin
        if len(inside):
            joined = union(inside[:, 0], inside[:, 1] + short)
            rows += [(name, begin, end - short) for begin, end in joined.tolist() if end - short - begin > 0.2 * short]
    return tuple(sorted(rows, key=lambda row: row[1]))


def _collectives(
    device: Spans, chosen: Bools, window: Floats, computing: Floats, count: float
) -> tuple[Collective, ...]:
    keys = np.unique(np.stack([device.kind[chosen], device.group[chosen]], axis=1), axis=0)
    calls = []
    for kind, group in keys.tolist():
        mask = chosen & (device.kind == kind) & (device.group == group)
        spans = both(union(device.begin[mask], device.end[mask]), window)
        name, ranks = device.groups[group]
        exposed = seconds(less(spans, computing)) / count
        calls.append(
            Collective(
                kind=device.kinds[kind],
                group=name,
                ranks=ranks,
                calls=float(mask.sum()) / count,
                seconds=seconds(spans) / count,
                hidden_seconds=seconds(spans) / count - exposed,
                exposed_seconds=exposed,
            )
        )
    return tuple(sorted(calls, key=lambda call: (-call.exposed_seconds, call.kind, call.group)))


def _irregularity(passes: Mapping[tuple[str, int], Sequence[float]]) -> float | None:
    spreads = [
        float(np.quantile(values, 0.9) / np.median(values)) - 1.0 for values in passes.values() if len(values) >= 4
    ]
    return max(spreads) if spreads else None


def union(begin: Array, end: Array) -> Floats:
    """Return the times that lie in any of the spans `begin` to `end`, [N] each."""
    begin, end = np.asarray(begin, dtype=float), np.asarray(end, dtype=float)
    if not len(begin):
        return NOTHING
    order = np.argsort(begin, kind="stable")
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    starts = np.flatnonzero(np.concatenate([[True], begin[1:] > reached[:-1]]))
    last = np.concatenate([starts[1:] - 1, [len(begin) - 1]])
    spans = np.stack([begin[starts], reached[last]], axis=1)
    return np.asarray(spans[spans[:, 1] > spans[:, 0]])


def both(first: Floats, second: Floats) -> Floats:
    """Return the times that lie in both sets."""
    return _where(first, second, lambda inside, other: inside & other)


def less(first: Floats, second: Floats) -> Floats:
    """Return the times that lie in the first set alone."""
    return _where(first, second, lambda inside, other: inside & ~other)


def either(first: Floats, second: Floats) -> Floats:
    """Return the times that lie in any of two sets."""
    spans = np.concatenate([first, second])
    return union(spans[:, 0], spans[:, 1])


def seconds(spans: Floats) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum())


def _where(first: Floats, second: Floats, rule: Callable[[Bools, Bools], Bools]) -> Floats:
    times = np.concatenate([first.ravel(), second.ravel()])
    if not len(times):
        return NOTHING
    order = np.argsort(times, kind="stable")
    inside = [
        np.cumsum(np.concatenate(steps)[order]) > 0
        for steps in (
            (np.tile([1, -1], len(first)), np.zeros(2 * len(second), dtype=int)),
            (np.zeros(2 * len(first), dtype=int), np.tile([1, -1], len(second))),
        )
    ]
    sorted_times = times[order]
    kept = rule(inside[0], inside[1])[:-1]
    return union(sorted_times[:-1][kept], sorted_times[1:][kept])


@lru_cache(maxsize=65_536)
def kind_of(name: str) -> str:
    """Return the kind of a kernel: a collective, attention, gemm, optimizer, copy, or `compute` for any other."""
    folded = name.casefold()
    return next((kind for kind, pattern in _patterns() if pattern.search(folded)), COMPUTE)


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (row["kind"], re.compile(row["pattern"])) for row in shipped_table("shardwright.traces", "kernels.csv")
    )
