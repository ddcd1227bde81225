"""Who goes on after a loss: one generation of machines follows another, and never two follow the same one.

Most of the machines of the generation before must be there. Where exactly half are, the half with its first machine
goes on. Fewer may be those that were cut off: they go on at once only where nobody listens any more where the others
were, else after a time in which a majority would have gone on. An arbiter outside of them, such as the object store,
lets one group alone claim to follow a generation. Which machine coordinates a group is for `leadership` to say. Compare
torchft's quorum, which needs a server that outlives all replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shardwright.records import record

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
