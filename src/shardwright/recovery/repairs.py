"""Plans that are quick to repair to: the copies of the model that nothing was lost of keep their layers and places.

* The copies that are left take over the micro-batches of the broken ones: nothing moves, and longer rows of
  micro-batches leave a smaller part of a pipeline idle (compare ReCycle, SOSP '24, which routes around single stages).
* What is left of the broken copies becomes new, smaller ones, made from the template of so many machines: only their
  layers move (Oobleck, SOSP '23).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from shardwright.errors import SpecError
from shardwright.plans.check import check
from shardwright.plans.plan import Plan, Replica
from shardwright.recovery.seats import Copy
from shardwright.search.planner import predict
from shardwright.spec.cluster import Cluster


def without(plan: Plan, broken: Collection[Copy], cluster: Cluster) -> Plan | None:
    """Return the plan whose copies that are not broken take all micro-batches, on the machines of `cluster`; None
    where there is no such copy, or none that fits. Predicted, if the plan was."""
    return _among(plan, _kept(plan, broken), cluster)


def refilled(plan: Plan, broken: Collection[Copy], template: Plan, cluster: Cluster) -> Plan | None:
    """Return the plan in which the copies of a template for the machines that are left over stand for the broken
    ones; None where that is illegal or does not fit."""
    kept = _kept(plan, broken)
    if not kept:
        return None
    share = sum(item.count * item.micro_batches for item in kept) / sum(item.gpus for item in kept)
    added = [replace(item, micro_batches=max(round(share * item.gpus / item.count), 1)) for item in template.replicas]
    return _among(plan, [*kept, *added], cluster)


def _kept(plan: Plan, broken: Collection[Copy]) -> list[Replica]:
    lost = Counter(replica for replica, _ in broken)
    counts = [item.count - lost[number] for number, item in enumerate(plan.replicas)]
    return [replace(item, count=count) for item, count in zip(plan.replicas, counts, strict=True) if count]


def _among(plan: Plan, replicas: Sequence[Replica], cluster: Cluster) -> Plan | None:
    """Return the plan of these copies, each with its part of the micro-batches of a step."""
    if not replicas:
        return None
    total = sum(item.count * item.micro_batches for item in plan.replicas)
    found = replace(plan, cluster=cluster, replicas=_shared(replicas, total), prediction=None)
    if check(found):
        return None
    try:
        return predict(found)
    except SpecError:
        return None


def _shared(replicas: Sequence[Replica], total: int) -> tuple[Replica, ...]:
    """Return copies with `total` micro-batches in all, in proportion to those that they have; equal copies differ by
    one at most."""
    have = sum(item.count * item.micro_batches for item in replicas)
    wanted = [item.count * item.micro_batches * total / have for item in replicas]
    whole = [int(amount) for amount in wanted]
    order = sorted(range(len(replicas)), key=lambda number: (whole[number] - wanted[number], number))
    for number in order[: total - sum(whole)]:
        whole[number] += 1
    found: list[Replica] = []
    for item, amount in zip(replicas, whole, strict=True):
        each, more = divmod(amount, item.count)
        parts = ((more, each + 1), (item.count - more, each))
        found += [replace(item, count=count, micro_batches=own) for count, own in parts if count and own]
    return tuple(found)
