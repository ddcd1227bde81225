"""`Trace`: how many machines of a type could be had in a zone, and at which price, from when on; and traces made with
losses in batches, correlated by zone, and lifetimes that are not exponential.

A zone has capacity for a while, and then has none: both spells are log-normal, so that short ones are frequent and a
few last for days. With it go all its machines but for some that stay longer, in one batch. Beside that single machines
are taken, those of a provider with a cap on lifetimes in the shape of a bathtub. What is published, and what is fitted
to it:

* skypilot-org/spot-traces, availability/16-node/aws-08-27-2023 (Wu et al., NSDI '24, "Can't Be Late"): 16 machines
  asked for every 300 s, mostly all or none at hand; in us-west-2c spells of 0.1 to 60 h, half of them under an hour.
  The range is taken for that of the middle 98 % of a log-normal distribution, SPREAD; the median of those without
  capacity is an hour, WITHOUT_HOURS.
* Kim et al., "Spot-and-Scoot", arXiv 2604.16457, 8 Apr 2026: of 2,635 interruptions on AWS and Azure, those of one type
  in one zone come within three minutes of each other in over 92 % of cases: BATCH, the share of losses that are a
  zone's.
* Thorpe et al., "Bamboo", NSDI '23 (arXiv 2204.12013): 64 p3 machines on EC2, whole batches within a zone; 10, 16 and
  33 % of the machines an hour: the lowest is that of the market of batches. A zone's capacity ends BATCH times as
  often, which is one over the mean of its spells, and gives their median.
* Kadupitiya et al., arXiv 1911.05160 (HPDC '20): lifetimes of Google's preemptible machines, 24 h at most, with the
  distribution A (1 - exp(-t / τ₁) + exp((t - b) / τ₂)); A = 0.45, τ₁ = 1 h, τ₂ = 0.8 h, b = 24 h are in the middle of
  the values that it reports.

Which machines a run has when (`presence`): as many as its plan wants, spread over zones so that no zone takes all of
them, and kept until they go. A machine that can be had joins after it has booted.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import exp, inf, log
from pathlib import Path
from statistics import NormalDist

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.errors import bad
from shardwright.files import write_atomically
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.recovery.quorum import Machine
from shardwright.spec.text.reading import read_text
from shardwright.units import SECONDS_PER_HOUR

COLUMNS = ("seconds", "zone", "gpu", "machines", "dollars_per_machine_hour")
LARGEST_BYTES = 64_000_000
Place = tuple[str, str]  # a zone and a GPU type
TICK_SECONDS = 60.0
BATCH = 0.92
SHORT_HOURS, LONG_HOURS, WITHOUT_HOURS = 0.1, 60.0, 1.0
SPREAD = log(LONG_HOURS / SHORT_HOURS) / (2 * NormalDist().inv_cdf(0.99))
CAP_HOURS = 24.0
BATHTUB_A, EARLY_HOURS, LATE_HOURS = 0.45, 1.0, 0.8


@record
class Trace:
    """At `seconds` [T], the last of them the end, `machines` [T, P] of each of P places could be had, at `dollars`
    [T, P] a machine and hour."""

    name: str
    places: tuple[Place, ...]
    seconds: Floats
    machines: Ints
    dollars: Floats

    @property
    def hours(self) -> float:
        return float(self.seconds[-1] - self.seconds[0]) / SECONDS_PER_HOUR


def read_trace(path: Path) -> Trace:
    """Return the trace of a CSV file with COLUMNS. A row holds until the next one of its zone and GPU; the last moment
    is the end. Raises SpecError with the line of what is wrong."""
    rows: dict[tuple[float, Place], tuple[int, float]] = {}
    reader = csv.DictReader(io.StringIO(read_text(path, limit_bytes=LARGEST_BYTES), newline=""))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise bad(f"{path}:1", f"has no column {', '.join(missing)}", f"the columns are {','.join(COLUMNS)}")
    for row in reader:
        time, place, found = _row(f"{path}:{reader.line_num}", row)
        rows[time, place] = found
    if len({time for time, _ in rows}) < 2:
        raise bad(str(path), "has fewer than two moments", "the last moment is the end of the trace")
    return trace_of(path.stem, rows)


def trace_of(name: str, rows: Mapping[tuple[float, Place], tuple[int, float]]) -> Trace:
    """Return the trace of what changes when: machines and dollars by time and place."""
    places = tuple(sorted({place for _, place in rows}))
    seconds = np.array(sorted({time for time, _ in rows}))
    machines, dollars = np.zeros((len(seconds), len(places)), np.int64), np.zeros((len(seconds), len(places)))
    column, line = {place: n for n, place in enumerate(places)}, {time: n for n, time in enumerate(seconds.tolist())}
    for (time, place), (number, price) in sorted(rows.items()):
        machines[line[time] :, column[place]] = number
        dollars[line[time] :, column[place]] = price
    return Trace(name=name, places=places, seconds=seconds, machines=machines, dollars=dollars)


def write_trace(path: Path, trace: Trace) -> None:
    lines = [",".join(COLUMNS)]
    for number, time in enumerate(trace.seconds.tolist()):
        for place, (zone, gpu) in enumerate(trace.places):
            now = (int(trace.machines[number, place]), float(trace.dollars[number, place]))
            before = (int(trace.machines[number - 1, place]), float(trace.dollars[number - 1, place]))
            if number in (0, len(trace.seconds) - 1) or now != before:
                lines.append(f"{time:.0f},{zone},{gpu},{now[0]},{now[1]:g}")
    write_atomically(path, "\n".join(lines) + "\n")


def _row(where: str, row: Mapping[str, str | None]) -> tuple[float, Place, tuple[int, float]]:
    try:
        time, machines, dollars = (
            float(row[name] or "") for name in ("seconds", "machines", "dollars_per_machine_hour")
        )
    except ValueError:
        raise bad(
            where, "seconds, machines and dollars are numbers", "give 0 machines where none could be had"
        ) from None
    if not (0 <= time < inf and 0 <= machines < inf and machines.is_integer() and 0 <= dollars < inf):
        message = "seconds, machines and dollars are finite and not negative, machines whole"
        raise bad(where, message, "mend the line")
    return time, (row["zone"] or "", row["gpu"] or ""), (int(machines), dollars)


@record
class Market:
    """A kind of market: which part of the machines that are there is lost an hour, and whether their lifetimes are
    capped beside."""

    name: str
    lost_per_hour: float
    capped: bool = False

    @property
    def alone_per_hour(self) -> float:
        """How often an hour a machine is taken alone."""
        return (1 - BATCH) * self.lost_per_hour

    @property
    def with_hours(self) -> float:
        """The median of the spells with capacity."""
        mean = 1 / (BATCH * self.lost_per_hour)
        return mean * exp(-(SPREAD**2) / 2)


# `batches` has Bamboo's lowest rate; `calm` a quarter of it, which is assumed; `capped` is as calm, with the lifetimes
# of Google's machines.
MARKETS = (
    Market(name="calm", lost_per_hour=0.025),
    Market(name="batches", lost_per_hour=0.10),
    Market(name="capped", lost_per_hour=0.025, capped=True),
)


def generate_for(plan: Plan, market: Market, *, days: float, zones: int, seed: int) -> Trace:
    """Return a trace for the first GPU type of a plan, in which half as many machines again can be had in all zones as
    the plan wants. Raises SpecError where its price is not known."""
    pool = plan.cluster.pools[0]
    price = pool.price and (pool.price.spot_per_hour or pool.price.on_demand_per_hour)
    if not price:
        raise bad(f"plan: {pool.gpu.name}", "has no price", "give one in the cluster file, or a trace")
    machines = max(-(-3 * pool.nodes // (2 * zones)), 1)
    return generate(market, gpu=pool.gpu.name, machines=machines, zones=zones, days=days, price=price, seed=seed)


def generate(market: Market, *, gpu: str, machines: int, zones: int, days: float, price: float, seed: int) -> Trace:
    """Return a trace of `zones` zones that have `machines` machines each while they have any. The price of a zone is
    drawn once, within a fifth of `price` dollars: spot prices hardly change (SpotLake, arXiv 2202.02973)."""
    random = np.random.default_rng(seed)
    end = days * 24 * SECONDS_PER_HOUR
    rows: dict[tuple[float, Place], tuple[int, float]] = {}
    for zone in range(zones):
        place = (f"zone-{'abcdefghijklmnopqrstuvwxyz'[zone % 26]}{zone // 26 or ''}", gpu)
        dollars = round(price * random.uniform(0.8, 1.2), 4)
        counts = _zone(market, machines, int(end / TICK_SECONDS), random)
        changes = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist()]
        rows |= {(tick * TICK_SECONDS, place): (int(counts[tick]), dollars) for tick in changes}
        rows[end, place] = (int(counts[-1]), dollars)
    return trace_of(f"{market.name}-{seed}", rows)


def lifetime_hours(random: np.random.Generator) -> float:
    """Return a lifetime from the bathtub distribution, by its inverse on a grid of minutes."""
    hours = np.arange(0.0, CAP_HOURS, 1 / 60)
    share = BATHTUB_A * (1 - np.exp(-hours / EARLY_HOURS) + np.exp((hours - CAP_HOURS) / LATE_HOURS))
    place = int(np.searchsorted(share, random.random()))
    return float(hours[place]) if place < len(hours) else CAP_HOURS


def _zone(market: Market, machines: int, ticks: int, random: np.random.Generator) -> np.ndarray:
    per_tick = TICK_SECONDS / SECONDS_PER_HOUR
    counts = np.zeros(ticks, dtype=np.int64)
    tick, capacity = 0, bool(random.random() < market.with_hours / (market.with_hours + WITHOUT_HOURS))
    while tick < ticks:
        median = market.with_hours if capacity else WITHOUT_HOURS
        stop = min(tick + max(int(exp(random.normal(log(median), SPREAD)) / per_tick), 1), ticks)
        if capacity:
            counts[tick:stop] = machines - _missing(market, machines, stop - tick, random)
        elif random.random() > BATCH:
            counts[tick:stop] = random.integers(0, machines)  # some are left
        tick, capacity = stop, not capacity
    return counts


def _missing(market: Market, machines: int, ticks: int, random: np.random.Generator) -> np.ndarray:
    """Return how many machines are taken alone at each tick of a spell; each is replaced after ten minutes or so."""
    missing = np.zeros(ticks, dtype=np.int64)
    per_tick = TICK_SECONDS / SECONDS_PER_HOUR
    for _ in range(machines):
        tick = 0
        while True:
            life = lifetime_hours(random) if market.capped else random.exponential(1.0 / market.alone_per_hour)
            tick += int(life / per_tick) + 1
            if tick >= ticks:
                break
            back = tick + 1 + int(random.exponential(10.0))
            missing[tick:back] += 1
            tick = back
    return missing


BOOT_SECONDS = 180.0  # from the order of a machine until its keeper joins; assumed


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
