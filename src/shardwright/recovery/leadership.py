"""Which machine coordinates. Every machine without a coordinator asks all it knows of, and follows this rule on what
those say that answer:

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

Leading is not going on: whether a coordinator may go on with the machines that join it is for `quorum` to say. So two
that lead for a moment, as their views differ, cost time and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.records import record
from shardwright.recovery.quorum import Address, Generation


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
