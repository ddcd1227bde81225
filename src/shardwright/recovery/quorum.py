"""Who goes on after a loss: one generation of machines follows another, and never two follow the same one.

Most of the machines of the generation before must be there. Where exactly half are, the half with its first machine
goes on. Fewer need an arbiter outside of them, such as the object store, that lets one group alone claim the number of
the next generation. Compare torchft's quorum, which needs a server that outlives all replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine of a run: its name, where its keeper listens, its GPUs, and the zone that may be lost as one."""

    name: str
    host: str
    port: int
    gpu: str
    gpus: int
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The machines that train together until one is lost or comes. The first of them coordinates; where it is lost,
    the first that is left."""

    number: int
    machines: tuple[Machine, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(machine.name for machine in self.machines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """Whether those present may go on, whether only after an arbiter said so, and why, in words."""

    may_go_on: bool
    needs_arbiter: bool
    reason: str


def quorum(before: Generation, present: Sequence[str]) -> Quorum:
    """Return whether the machines `present` may be the next generation; machines that are new do not count."""
    there = [name for name in before.names if name in present]
    total = len(before.machines)
    words = f"{len(there)} of {total} machines of generation {before.number} are there"
    if 2 * len(there) > total or not total:
        return Quorum(may_go_on=True, needs_arbiter=False, reason=words)
    if 2 * len(there) == total and before.names[0] in there:
        return Quorum(may_go_on=True, needs_arbiter=False, reason=f"{words}, the first among them")
    if not there:
        return Quorum(may_go_on=False, needs_arbiter=False, reason=words)
    return Quorum(may_go_on=True, needs_arbiter=True, reason=f"{words}: no majority")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a group tells the arbiter: who coordinates it, all its machines, and whether they are a majority."""

    by: str
    machines: tuple[str, ...]
    majority: bool

    def __str__(self) -> str:
        return f"{self.by} with a {'majority' if self.majority else 'minority'}"


def gives_way(claim: Claim, first: Claim) -> bool:
    """Return whether a group must wait, as the claim that was first is another's. That of a majority stands against
    minorities: two majorities have a machine in common, which goes on with the newer one. That of a minority stands
    against all without one of its machines, which may be training; where all of them are there, none is."""
    if first.majority:
        return not claim.majority
    same = not claim.majority and claim.by == first.by
    return not same and not set(first.machines) <= set(claim.machines)


def next_generation(before: Generation, present: Sequence[Machine]) -> Generation:
    """Return the generation of those present: machines of the one before in its order, then those that are new."""
    by_name = {machine.name: machine for machine in present}
    old = [by_name[name] for name in before.names if name in by_name]
    new = [machine for machine in present if machine.name not in before.names]
    return Generation(number=before.number + 1, machines=(*old, *new))
