"""Which machines a run has when: as many as its plan wants, spread over zones so that no zone takes all of them, and
kept until they go. A machine that can be had joins after it has booted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from shardwright.errors import bad
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.recovery.quorum import Machine
from shardwright.recovery.simulation.traces import Place, Trace

BOOT_SECONDS = 180.0
"""From the order of a machine until its keeper joins; assumed."""


@record
class PresenceSpan:
    """From `seconds` on, for `length` seconds, a run has these machines, at so many dollars an hour. `lost` of those
    before are gone."""

    seconds: float
    length: float
    machines: tuple[Machine, ...]
    dollars_per_hour: float
    lost: int


def spans(trace: Trace, plan: Plan, seed: int = 0) -> list[PresenceSpan]:
    """Return the spans of a trace. Where a place has fewer machines than the run has of it, chance says which go.

    Raises SpecError where the trace has none of the plan's GPU types.
    """
    pools = plan.cluster.pool_of
    if not {gpu for _, gpu in trace.places} & pools.keys():
        names = ", ".join(sorted({gpu for _, gpu in trace.places}))
        raise bad(f"trace {trace.name}", f"has {names}, and none of the plan", f"the plan has {', '.join(pools)}")
    wanted = {name: sum(p.nodes for p in plan.cluster.pools if p.gpu.name == name) for name in pools}
    gpus = {name: pool.gpus_per_node for name, pool in pools.items()}
    joined: list[PresenceSpan] = []
    for span in _raw(trace, wanted, gpus, np.random.default_rng(seed)):
        last = joined[-1] if joined else None
        if last and (last.machines, last.dollars_per_hour) == (span.machines, span.dollars_per_hour):
            joined[-1] = replace(last, length=last.length + span.length)
        else:
            joined.append(span)
    return joined


def _raw(
    trace: Trace, wanted: dict[str, int], gpus: dict[str, int], random: np.random.Generator
) -> Iterator[PresenceSpan]:
    kept: dict[Place, list[Machine]] = {place: [] for place in trace.places}
    booting: list[tuple[float, Place]] = []
    serial, lost = count(), 0
    moments = iter(
        zip(trace.seconds[:-1].tolist(), trace.seconds[1:].tolist(), range(len(trace.seconds)), strict=False)
    )
    for begin, end, number in moments:
        free = dict(zip(trace.places, trace.machines[number].tolist(), strict=True))
        price = dict(zip(trace.places, trace.dollars[number].tolist(), strict=True))
        lost = sum(_shrunk(kept[place], free[place], random) for place in trace.places)
        booting = [item for n, item in enumerate(booting) if _room(item[1], free, kept, booting[:n]) > 0]
        booting += _ordered(begin, free, price, kept, booting, wanted)
        now = begin
        for ready in [*sorted({time for time, _ in booting if time < end}), end]:
            if ready > now:
                there = sorted((m for machines in kept.values() for m in machines), key=lambda m: m.port)
                dollars = float(sum(len(machines) * price[place] for place, machines in kept.items()))
                yield PresenceSpan(
                    seconds=now, length=ready - now, machines=tuple(there), dollars_per_hour=dollars, lost=lost
                )
                now, lost = ready, 0
            for time, (zone, gpu) in [item for item in booting if item[0] <= now < end]:
                number = next(serial)
                name = f"{zone}/{gpu}/{number}"
                kept[zone, gpu].append(Machine(name=name, host="", port=number, gpu=gpu, gpus=gpus[gpu], zone=zone))
                booting.remove((time, (zone, gpu)))


def _shrunk(machines: list[Machine], most: int, random: np.random.Generator) -> int:
    """Take machines away until there are `most`, and return how many went."""
    gone = max(len(machines) - most, 0)
    for _ in range(gone):
        machines.pop(int(random.integers(len(machines))))
    return gone


def _room(
    place: Place, free: dict[Place, int], kept: dict[Place, list[Machine]], booting: Sequence[tuple[float, Place]]
) -> int:
    return free[place] - len(kept[place]) - sum(other == place for _, other in booting)


def _ordered(
    now: float,
    free: dict[Place, int],
    price: dict[Place, float],
    kept: dict[Place, list[Machine]],
    booting: list[tuple[float, Place]],
    wanted: dict[str, int],
) -> list[tuple[float, Place]]:
    """Return the machines that begin to boot: each in the place that has fewest of the run's, of these the cheapest."""
    ordered: list[tuple[float, Place]] = []
    for gpu, most in wanted.items():
        mine = [place for place in free if place[1] == gpu]
        coming = [place for _, place in booting if place[1] == gpu]
        missing = most - sum(len(kept[place]) for place in mine) - len(coming)
        for _ in range(missing):
            open_places = [place for place in mine if _room(place, free, kept, [*booting, *ordered]) > 0]
            if not open_places:
                break
            taken = [place for _, place in [*booting, *ordered]]
            best = min(open_places, key=lambda p: (len(kept[p]) + taken.count(p), price[p], p))
            ordered.append((now + BOOT_SECONDS, best))
    return ordered
