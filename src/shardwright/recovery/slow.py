"""Machines that are slow, not dead: found from measured stage times, and answered by a new split where that pays.

A rank is as slow as the time that it computes in a step, against the median of those that have the same work on the
same GPU type, and against its own best so far in the same generation; the larger counts (compare Malleus, Li et al.,
2024, which measures stragglers in the same way). A machine is as slow as the slowest of its ranks. A new split has it
as a GPU type of its own, whose rates are divided by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.recovery.outlook import Outlook
from shardwright.recovery.quorum import Machine
from shardwright.recovery.ways import (
    REFORM_SECONDS,
    Phase,
    RecoveryDecision,
    RecoveryOption,
    Templates,
    decide,
    dollars_per_hour,
    template_of,
)
from shardwright.rows import grouped
from shardwright.search.planner import predict
from shardwright.spec.cluster import Gpu

SLOW = 1.25  # times its peers or its own best, from which a machine is slow
WINDOWS = 3  # in so many windows of steps one after the other
MARK = "@slow-"
Rank = tuple[str, int]  # a machine and its GPU


@record
class Pace:
    """The median seconds that a rank computed in a step of a window, and its work in words: those of equal words shall
    take as long."""

    rank: Rank
    work: str
    seconds: float


def factors(paces: Sequence[Pace], best: Mapping[Rank, float]) -> dict[str, float]:
    """Return how slow each machine is in a window, 1 or more; `best` are the ranks' least seconds so far."""
    alike = grouped((pace.work, pace.seconds) for pace in paces)
    slowdowns: dict[str, float] = {}
    for pace in paces:
        peers = median(alike[pace.work]) if len(alike[pace.work]) > 2 else pace.seconds
        usual = min(peers, best.get(pace.rank, pace.seconds))
        machine = pace.rank[0]
        slowdowns[machine] = max(slowdowns.get(machine, 1.0), pace.seconds / usual if usual else 1.0)
    return slowdowns


def slow_machines(windows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the machines that were slow in the last windows, with the least that they were so."""
    last = windows[-WINDOWS:]
    if len(last) < WINDOWS:
        return {}
    least = {machine: min(window.get(machine, 1.0) for window in last) for machine in last[-1]}
    return {machine: factor for machine, factor in least.items() if factor >= SLOW}


def slowed(machine: Machine, factor: float) -> Machine:
    """Return a machine as one of a GPU type of its own, so much slower."""
    return replace(machine, gpu=f"{machine.gpu.partition(MARK)[0]}{MARK}{factor:.2f}")


def with_slow_pools(plan: Plan, machines: Iterable[Machine]) -> Plan:
    """Return a plan whose cluster also has the types of slowed machines."""
    pools = plan.cluster.pool_of
    added = []
    for name in sorted({machine.gpu for machine in machines if MARK in machine.gpu}):
        usual, _, factor = name.partition(MARK)
        if usual in pools and name not in pools:
            nodes = sum(machine.gpu == name for machine in machines)
            added.append(replace(pools[usual], gpu=_gpu(pools[usual].gpu, name, float(factor)), nodes=nodes))
    if not added:
        return plan
    return replace(plan, cluster=replace(plan.cluster, pools=(*plan.cluster.pools, *added)))


def answer(
    now: Plan, first: Plan, machines: Sequence[Machine], slow: Mapping[str, float], outlook: Outlook
) -> tuple[RecoveryDecision, bool]:
    """Return whether to split anew around slow machines, and why. Who stays computes as fast as the slowest."""
    renamed = [slowed(m, slow[m.name]) if m.name in slow else m for m in machines]
    templates: Templates = {}
    other = template_of(with_slow_pools(first, renamed), renamed, templates)
    known = now if now.prediction else predict(now)
    rates = {"stay": _rate(known) / max(slow.values()), "split anew": 0.0 if other is None else _rate(other)}
    price = dollars_per_hour(first, machines)
    ways = [
        RecoveryOption(
            name=name,
            dollars_per_hour=price,
            phases=(Phase(tokens_per_second=rate, pause_seconds=0.0 if name == "stay" else REFORM_SECONDS),),
        )
        for name, rate in rates.items()
    ]
    decision = decide(ways, outlook.horizon_seconds)
    return decision, decision.chosen == 1


def _rate(plan: Plan) -> float:
    return plan.prediction.tokens_per_second if plan.prediction else 0.0


def _gpu(gpu: Gpu, name: str, factor: float) -> Gpu:
    peaks = tuple((precision, peak / factor) for precision, peak in gpu.peak_flops)
    return replace(gpu, name=name, peak_flops=peaks, memory_bytes_per_second=gpu.memory_bytes_per_second / factor)
