"""Who goes on after a loss, and which machine coordinates: one generation of machines follows another, and never two
follow the same one.

Most of the machines of the generation before must be there. Where exactly half are, the half with its first machine
goes on. Fewer may be those that were cut off: they go on at once only where nobody listens any more where the others
were, else after a time in which a majority would have gone on. An arbiter outside of them, such as the object store,
lets one group alone claim to follow a generation. Compare torchft's quorum, which needs a server that outlives all
replicas.

Which machine coordinates:

1. One that coordinates says so itself; nobody is taken for a coordinator on hearsay, but where a machine says that its
   coordinator is, there is one to be asked. Of several, the one of the newest generation counts.
   Where two groups went on apart and count alike, the one of more machines is newer, then the one whose names come
   first.
2. A coordinator of an older generation than the newest that anyone remembers is passed over: the run went on without
   it. It goes on looking for machines that are not with it, follows this rule too, and so gives way: thus two groups
   that went on apart come together again.
3. Where nobody coordinates, the machines of the newest generation do, in its order: the first that answers and
   remembers it. One that was started anew remembers nothing, and waits for it.
4. Where nobody remembers a generation, the first of `--join` begins the run, after the last number that was claimed in
   the object store. It waits for the machines of the plan; with fewer it begins only if no new step came meanwhile.

Leading is not going on: whether a coordinator may go on with the machines that join it is for a quorum to say. So two
that lead for a moment, as their views differ, cost time and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from shardwright.arrays import Floats
from shardwright.errors import bad
from shardwright.plans.placement import Placement, placement_of, ranks, slots
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.spec.cluster import Cluster

Address = tuple[str, int]


@record
class Machine:
    """A machine of a run: its name, where its keeper listens, its GPUs, and the zone that may be lost as one."""

    name: str
    host: str
    port: int
    gpu: str
    gpus: int
    zone: str = ""

    @property
    def address(self) -> Address:
        return self.host, self.port


@record
class Generation:
    """The machines that train together until one is lost or comes. The first of them coordinates; where it is lost,
    the first that is left."""

    number: int
    machines: tuple[Machine, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(machine.name for machine in self.machines)


@record
class Quorum:
    """Whether those present are most of a generation, or half with its first machine; the count in words."""

    majority: bool
    reason: str


def quorum(before: Generation, present: Collection[str]) -> Quorum:
    """Return whether the machines `present` are a majority of a generation; machines that are new do not count."""
    there, total = sum(name in present for name in before.names), len(before.machines)
    words = f"{there} of {total} machines of generation {before.number} are there"
    if 2 * there > total or not total:
        return Quorum(majority=True, reason=words)
    if 2 * there == total and before.names[0] in present:
        return Quorum(majority=True, reason=f"{words}, the first among them")
    return Quorum(majority=False, reason=f"{words}: no majority")


@record
class Claim:
    """What a group tells the arbiter: who coordinates it, all its machines, and whether they are a majority."""

    by: str
    machines: tuple[str, ...]
    majority: bool

    def __str__(self) -> str:
        return f"{self.by} with a {'majority' if self.majority else 'minority'}"


def gives_way(claim: Claim, first: Claim, gone: Collection[str] = (), *, alone: bool = False) -> bool:
    """Return whether a group must wait, as the claim that was first is another's. Machines that are `gone` train
    nowhere. A claim stands against all without one of its machines, which may be training; where all of them are here
    or gone, none is. That of a majority stands against minorities alone: two majorities have a machine in common, which
    goes on with the newer one. A claim that stands `alone`, to begin a run or to follow a later generation than this
    group's, does so against everybody else."""
    if set(first.machines) <= {*claim.machines, *gone}:
        return False
    if first.majority and not alone:
        return not claim.majority
    return claim.by != first.by or (claim.majority and not alone)


def next_generation(before: Generation, present: Sequence[Machine], number: int) -> Generation:
    """Return generation `number` of those present: machines of the one before in its order, then those that are new."""
    by_name = {machine.name: machine for machine in present}
    old = [by_name[name] for name in before.names if name in by_name]
    new = [machine for machine in present if machine.name not in before.names]
    return Generation(number=number, machines=(*old, *new))


@record
class Standing:
    """What a machine says of itself: where it listens, the generation that it was in last (number 0: none), and where
    its coordinator is, which may be itself; None while it looks for one."""

    address: Address
    generation: Generation
    leader: Address | None = None

    @property
    def leads(self) -> bool:
        return self.leader == self.address


def leader_of(standings: Sequence[Standing], first: Address) -> Address | None:
    """Return where the coordinator is, or shall be, by what machines say of themselves, the one that asks among them;
    None where it has to be waited for. `first` begins the run."""
    newest = min((standing.generation for standing in standings), key=_place)
    order = [machine.address for machine in newest.machines] or [first]
    remember = [standing for standing in standings if _place(standing.generation) == _place(newest)]

    def place(address: Address) -> tuple[int, Address]:
        return (order.index(address) if address in order else len(order)), address

    leading = [standing.address for standing in remember if standing.leads]
    known = [standing.address for standing in remember if standing.address in order]
    return min(leading or known, key=place, default=None)


def _place(generation: Generation) -> tuple[int, int, tuple[str, ...]]:
    """Return what puts the newest generation first."""
    return -generation.number, -len(generation.machines), generation.names


Copy = tuple[int, int]  # a copy of the model: the number of its replica in the plan, and its own among the equal ones


def partner_of(machines: Sequence[Machine], place: int) -> Machine | None:
    """Return which machine has a copy of what one holds alone: the next one, of another zone if there is one."""
    others = [*machines[place + 1 :], *machines[:place]]
    apart = [machine for machine in others if machine.zone != machines[place].zone]
    return next(iter(apart or others), None)


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
