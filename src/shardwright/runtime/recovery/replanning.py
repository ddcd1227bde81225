"""The plan for the machines that are there. No PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from shardwright.plans.plan import Plan
from shardwright.recovery.decide import Way, decide
from shardwright.recovery.quorum import Machine
from shardwright.runtime.recovery.needs import fits
from shardwright.search.replan import replan
from shardwright.spec.cluster import Cluster

HORIZON_SECONDS = 3600.0
"""How long machines are expected to stay as they are."""
REFORM_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The plan to go on with, None to wait, and why in a line."""

    plan: Plan | None
    reason: str


def cluster_of(first: Plan, machines: Sequence[Machine]) -> Cluster:
    """Return the cluster of the machines that are there, each as a pool of the first plan's cluster describes it."""
    pools = []
    for pool in first.cluster.pools:
        there = sum(m.gpu == pool.gpu.name and m.gpus >= pool.gpus_per_node for m in machines)
        if there:
            pools.append(replace(pool, nodes=there))
    return replace(first.cluster, pools=tuple(pools))


def plan_for(now: Plan, first: Plan, machines: Sequence[Machine], arrival_seconds: float = inf) -> Choice:
    """Return the plan to go on with on these machines, or None to wait for more, and why.

    The plan before, the run's first plan and a new one are compared, and with fewer machines than before also waiting
    until there are as many again, in `arrival_seconds`: unless that is known, nobody waits where a plan fits.
    """
    found = {"stay": now} if fits(now, machines) else {}
    if fits(first, machines) and first != now:
        found["take back the first plan"] = first
    if sum(pool.nodes for pool in now.cluster.pools) != len(machines):
        cluster = cluster_of(first, machines)
        new = replan(now, cluster) if cluster.pools else None
        if new is not None and new not in found.values():
            found["replan"] = new
    if not found:
        return Choice(plan=None, reason=f"wait: no plan fits {len(machines)} machines")
    plans = [*found.values(), now]
    predicted = all(plan.prediction for plan in plans)
    rates = [plan.prediction.tokens_per_second if predicted and plan.prediction else plan.gpus for plan in plans]
    price = _dollars_per_hour(first, machines)
    ways = [
        Way(name=name, tokens_per_second=rate, dollars_per_hour=price, pause_seconds=REFORM_SECONDS)
        for name, rate in zip(found, rates, strict=False)
    ]
    if not fits(now, machines):
        waiting = max(arrival_seconds, REFORM_SECONDS)
        ways.append(Way(name="wait", tokens_per_second=rates[-1], dollars_per_hour=price, pause_seconds=waiting))
    decision = decide(ways, HORIZON_SECONDS)
    return Choice(plan=[*found.values(), None][decision.chosen], reason=decision.reason)


def _dollars_per_hour(first: Plan, machines: Sequence[Machine]) -> float:
    """Return the price of the machines that are there: paid whatever they do. Without prices, one for each GPU."""
    prices = {pool.gpu.name: pool.dollars_per_node_hour for pool in first.cluster.pools}
    found = [prices.get(machine.gpu) for machine in machines]
    known = [price for price in found if price is not None]
    return sum(known) if len(known) == len(found) else float(sum(machine.gpus for machine in machines))
