"""Which machine of a run each rank of a plan sits on, and so which copies of the model a lost machine breaks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from shardwright.arrays import Floats
from shardwright.errors import bad
from shardwright.plans.placement import Placement, placement_of, ranks, slots
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.recovery.quorum import Machine
from shardwright.spec.cluster import Cluster

Copy = tuple[int, int]
"""A copy of the model: the number of its replica in the plan, and its own among the equal ones."""


@record
class RankSeat:
    """Where a rank runs: the machine and the number of its GPU there."""

    machine: str
    slot: int


def require_machines(plan: Plan) -> None:
    """Raise SpecError where machines of the plan's cluster have GPUs of several types: recovery knows one of each."""
    mixed = [pool.machines for pool in plan.cluster.pools if pool.mixed]
    if mixed:
        message = f"machines with GPUs of several types ({mixed[0]}) do not come and go in a run"
        raise bad("cluster", message, "a run that is not elastic goes on from its checkpoint")


def seats(plan: Plan, machines: Sequence[Machine]) -> tuple[RankSeat, ...]:
    """Return the seat of every rank: the machines of each GPU type, in their order, are those of the plan's cluster."""
    placement = placement_of(plan)
    names, (_, slot) = _machine_names(plan, placement, machines), slots(plan, placement)
    order = np.argsort(ranks(plan, placement))
    return tuple(RankSeat(machine=names[at], slot=int(slot[at])) for at in order.tolist())


def copies_on(plan: Plan, machines: Sequence[Machine]) -> dict[str, frozenset[Copy]]:
    """Return for each machine that has a rank which copies of the model have one there."""
    placement = placement_of(plan)
    stage = placement.stage
    replica = np.repeat(np.arange(len(plan.replicas)), [len(item.stages) for item in plan.replicas])[stage]
    copy = (np.arange(len(stage)) - placement.begin[stage]) // placement.size[stage]
    held: dict[str, set[Copy]] = {}
    names = _machine_names(plan, placement, machines)
    for name, first, second in zip(names, replica.tolist(), copy.tolist(), strict=True):
        held.setdefault(name, set()).add((first, second))
    return {machine: frozenset(copies) for machine, copies in held.items()}


def kept_share(plan: Plan, broken: Collection[Copy]) -> float:
    """Return the part of the samples of a step that is taken by copies that are not broken."""
    whole = sum(item.count * item.samples(plan.micro_batch) for item in plan.replicas)
    return 1.0 - sum(plan.replicas[replica].samples(plan.micro_batch) for replica, _ in broken) / whole


def share_after_a_loss(plan: Plan) -> float:
    """Return `kept_share` where one of the machines that the plan uses is lost, on average over them."""
    copies = copies_on(plan, stand_ins(plan.cluster))
    return float(np.mean([kept_share(plan, broken) for broken in copies.values()]))


def stand_ins(cluster: Cluster) -> tuple[Machine, ...]:
    """Return a machine for each of a cluster's, which stands nowhere."""
    return tuple(
        Machine(name=f"{place}.{number}", host="", port=0, gpu=pool.gpu.name, gpus=pool.gpus_per_node)
        for place, pool in enumerate(cluster.pools)
        for number in range(pool.nodes)
    )


def seated(plan: Plan, machines: Sequence[Machine], kept_bytes: Floats) -> tuple[Machine, ...]:
    """Return the machines in an order in which little of their state moves.

    `kept_bytes` [M, N] is what each machine holds of what each of the N machines of the plan's cluster (`stand_ins`)
    needs. The largest goes first, and takes machine and place out; what is left keeps its order.
    """
    places = stand_ins(plan.cluster)
    alike = np.array([[m.gpu == p.gpu and m.gpus >= p.gpus for p in places] for m in machines])
    bytes_left = np.where(alike, kept_bytes, -1.0)
    taken: list[Machine | None] = [None] * len(places)
    left = list(range(len(machines)))
    for _ in places:
        machine, place = divmod(int(bytes_left.argmax()), len(places))
        if bytes_left[machine, place] < 0.0:
            break
        taken[place] = machines[machine]
        left.remove(machine)
        bytes_left[machine, :] = bytes_left[:, place] = -1.0
    return (*(machine for machine in taken if machine is not None), *(machines[number] for number in left))


def fits(plan: Plan, machines: Sequence[Machine]) -> bool:
    """Return whether machines are enough for a plan as it is."""
    return all(
        sum(m.gpu == pool.gpu.name and m.gpus >= pool.gpus_per_node for m in machines) >= pool.nodes
        for pool in plan.cluster.pools
    )


def cluster_of(first: Plan, machines: Sequence[Machine]) -> Cluster:
    """Return the cluster of the machines that are there, each as a pool of the first plan's cluster describes it."""
    pools = []
    for pool in first.cluster.pools:
        there = sum(m.gpu == pool.gpu.name and m.gpus >= pool.gpus_per_node for m in machines)
        if there:
            pools.append(pool.resized(there))
    return replace(first.cluster, pools=tuple(pools))


def _machine_names(plan: Plan, placement: Placement, machines: Sequence[Machine]) -> list[str]:
    names = [[m.name for m in machines if m.gpu == gpu] for gpu in placement.types]
    kind, (node, _) = placement.type[placement.stage], slots(plan, placement)
    return [names[gpu][number] for gpu, number in zip(kind.tolist(), node.tolist(), strict=True)]
