"""A recovery as it would be if machines were lost now, from what the keepers of a run say. No PyTorch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from shardwright.errors import bad
from shardwright.plans.document import from_document
from shardwright.records import record
from shardwright.recovery.outlook import Outlook, Rates, bandwidths_of
from shardwright.recovery.quorum import Machine
from shardwright.recovery.seats import seats
from shardwright.recovery.ways import RunPlans, choose
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.recovery.state.inventory import held_of, newest_state
from shardwright.runtime.recovery.state.transfers import machine_needs, moved_bytes, movement, seat_order
from shardwright.runtime.recovery.wire import LostError, Message, RefusedError, answer_of
from shardwright.runtime.state.pieces import parameter_shapes, state_kinds
from shardwright.runtime.state.recipe import METHOD_OF

ASK_SECONDS = 10.0


@record
class DryRun:
    """What a recovery would do: the machines left, the plan decided on, the step it goes on at, the bytes from each
    kind of source, and the seconds of moving with their lower bound."""

    generation: int
    machines: tuple[str, ...]
    ranks: int
    step: int
    decision: str
    moved_bytes: Mapping[str, int]
    seconds: float
    bound_seconds: float


def recovery_after_loss(address: tuple[str, int], lost: tuple[str, ...], secret: bytes = b"") -> DryRun:
    """Return the recovery from the loss of machines. Raises SpecError where the run cannot be reached, a machine is
    none of it, or its state would not survive."""
    try:
        first, answers = asyncio.run(_asked(address, lost, secret))
    except (LostError, RefusedError) as error:
        raise bad(f"{address[0]}:{address[1]}", str(error), "name the keeper of a machine of the run") from None
    machines = [Machine(**item) for item in first["machines"] if item["name"] not in lost]
    unknown = set(lost) - {item["name"] for item in first["machines"]}
    if unknown:
        known = ", ".join(item["name"] for item in first["machines"])
        raise bad(", ".join(sorted(unknown)), "is no machine of the run", f"its machines are {known}")
    now = from_document(first["plan"])
    before = tuple(Machine(**item) for item in first["seated"])
    choice = choose(RunPlans(now=now, seated=before, first=now), machines, Outlook(), {})
    if choice.plan is None:
        raise bad("recover", choice.reason, "the run would wait for machines")
    held = [held_of(row) for answer in answers for row in answer["held"]]
    layout = layout_of(choice.plan)
    shapes, kinds = parameter_shapes(layout), state_kinds(layout, METHOD_OF[now.job.optimizer])
    state = newest_state(held, shapes, kinds)
    if state is None:
        raise bad("recover", "the snapshots of the machines left are not whole", "the object store would be read")
    names = [machine.name for machine in machines]
    order = seat_order(choice.plan, machines, state, kinds, shapes)
    needs = machine_needs(layout, seats(choice.plan, order), kinds, state, shapes)
    moves = movement(state, needs, names, bandwidths_of(len(names), Rates()))
    return DryRun(
        generation=first["generation"],
        machines=tuple(names),
        ranks=choice.plan.gpus,
        step=state.step,
        decision=choice.reason,
        moved_bytes=moved_bytes(moves),
        seconds=moves.plan.seconds,
        bound_seconds=moves.plan.bound_seconds,
    )


async def _asked(address: tuple[str, int], lost: tuple[str, ...], secret: bytes) -> tuple[Message, list[Message]]:
    """Return what one keeper says of the run, and what each machine that is left holds."""
    first = await answer_of(address, "inventory", secret=secret, timeout=ASK_SECONDS)
    left = [Machine(**item) for item in first["machines"] if item["name"] not in lost]
    return first, list(
        await asyncio.gather(
            *(answer_of(machine.address, "inventory", secret=secret, timeout=ASK_SECONDS) for machine in left)
        )
    )
