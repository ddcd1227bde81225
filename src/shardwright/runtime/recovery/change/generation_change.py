"""The way from one generation to the next: halt every machine, bring the survivors to one step, find what survives,
make a plan for who is there, move what is needed, start; and what that took, as a line of the log and of
`recoveries.jsonl`. Nothing of it is kept: whoever does it anew asks the machines, and knows as much. No PyTorch."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from shardwright.errors import SpecError, bad
from shardwright.plans.document import from_document, to_document
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.recovery.outlook import Outlook, Rates, bandwidths_of
from shardwright.recovery.quorum import Generation, Machine, RankSeat, fits, next_generation, seats
from shardwright.recovery.slow import with_slow_pools
from shardwright.recovery.ways import RunPlans, choose
from shardwright.rows import grouped
from shardwright.runtime.job.course import RunIdentity, require_step_of
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.recovery.fleet.membership import BeginAgainError, Members, QuorumCheck
from shardwright.runtime.recovery.run import GenerationBase, KeeperOptions, report_of, settle
from shardwright.runtime.recovery.state.cloud import Cloud
from shardwright.runtime.recovery.state.inventory import (
    Key,
    SurvivingState,
    disagreements,
    held_of,
    newest_state,
    pieces_of,
)
from shardwright.runtime.recovery.state.transfers import (
    UNSOUND,
    Movement,
    machine_needs,
    moved_bytes,
    movement,
    orders_of,
    seat_order,
)
from shardwright.runtime.recovery.wire import LostError, Message, RefusedError, answer_of, answered
from shardwright.runtime.state.pieces import parameter_shapes, state_kinds
from shardwright.runtime.state.recipe import METHOD_OF
from shardwright.units import counted, format_bytes, format_seconds

ASKING_SECONDS = 30.0  # so long the object store has to say what it holds
CHANCES = 2  # so often it may give a piece otherwise than it was written, before an older step is taken


class WaitError(Exception):
    """Nothing is trained until there are more machines, or `again_seconds` are over."""

    def __init__(self, reason: str, again_seconds: float) -> None:
        super().__init__(reason)
        self.again_seconds = again_seconds


class NothingLeftError(Exception):
    """No step of the run survives whole."""


class OtherRunError(Exception):
    """The object store has steps of another run."""


class BehindError(BeginAgainError):
    """A machine has promised itself to a newer generation than the one that was to come."""

    def __init__(self, promised: int) -> None:
        super().__init__(f"generation {promised} is promised")
        self.promised = promised


@record
class Ready:
    """Where the next generation starts: its base, who sits where, after which step, with which loss scale, and whether
    the state of that is kept: at the beginning there is none."""

    base: GenerationBase
    seats: tuple[RankSeat, ...]
    step: int
    kept: bool
    scale: Any


@record
class GenerationChange:
    """What every change of a run needs beside its base."""

    options: KeeperOptions
    run: RunIdentity
    members: Members
    cloud: Cloud | None
    quorum: QuorumCheck
    damage: list[str] = field(default_factory=list)
    unsound: Counter[Key] = field(default_factory=Counter)

    async def prepare(
        self, base: GenerationBase, number: int, recovery: Recovery, leaving: Collection[str] = ()
    ) -> Ready:
        """Bring the run from a generation to where the next, number `number`, can start. Machines that are `leaving`
        give what they have and are none of it.

        Raises BeginAgainError, LostError or RefusedError where it must begin anew, WaitError where no plan fits the
        machines, MinorityError where others may go on, NothingLeftError or OtherRunError where the run cannot.
        """
        present = list(self.members.by_name)
        majority = await self.quorum.require(base.generation, present, base.minority_since)
        # Those that were counted must promise themselves, and nobody else: one that is lost meanwhile may be of another
        # majority.
        halted = await self.members.ask_each("halt", {name: {"generation": number} for name in present})
        promised = max(reply.get("promised", number) for reply in halted.values())
        if promised > number:
            raise BehindError(promised)
        recovery.lap("detect")
        going = self.members.named([name for name in halted if name in leaving])
        machines = self.members.named([name for name in halted if name not in leaving])
        step, answers = await self._settled(halted, number)
        recovery.lap("re-form")
        state = await self._surviving(answers, step if majority and base.generation.machines else None)
        try:
            starting = self.members.starting if step >= 0 else ()
            plan, generation = await self._next_plan(base, number, machines, starting)
        except WaitError:
            if going and state is not None:
                await self.members.ask_all("flush", step=state.step, generation=number)
            raise
        going += [machine for machine in machines if machine not in generation.machines]
        order = seat_order(plan, generation.machines, state, self.run.kinds, self.run.shapes)
        where, scale = seats(plan, order), await self._scale(answers, state)
        recovery.lap("plan")
        if state is not None:
            await self._move(recovery, generation, going, plan, where, state, scale)
        recovery.lap("move")
        step = self.run.step if state is None else state.step
        recovery.reached(generation, step, plan)
        after = replace(base, generation=generation, plan=plan, seated=order, minority_since=inf)
        return Ready(base=after, seats=where, step=step, kept=state is not None, scale=scale)

    async def start(self, ready: Ready) -> None:
        """Have all machines of the generation train, and the others know of it. Raises as `prepare`."""
        base = ready.base
        fields = {
            "generation": base.generation.number,
            "plan": to_document(base.plan),
            "machines": [asdict(machine) for machine in base.generation.machines],
            "seated": [machine.name for machine in base.seated],
            "seats": [[seat.machine, seat.slot] for seat in ready.seats],
            "store": [base.generation.machines[0].host, base.generation.machines[0].port],
            "step": ready.step,
            "kept": ready.kept,
            "scale": ready.scale,
        }
        await self.members.ask_each("start", dict.fromkeys([*self.members.by_name, *base.generation.names], fields))

    async def _settled(self, halted: Mapping[str, Message], number: int) -> tuple[int, dict[str, Message]]:
        """Bring all survivors to one step, and return it with what each machine then holds."""
        reports = [report_of(report) for reply in halted.values() for report in reply["reports"].values()]
        settled = settle([report for report in reports if report.step >= 0])
        fields = {"generation": number, "step": settled.step, "vote": settled.vote}
        answers = await self.members.ask_each("settle", dict.fromkeys(halted, fields))
        return settled.step, answers

    async def _surviving(self, answers: Mapping[str, Message], reached: int | None) -> SurvivingState | None:
        """Return the newest step that survives on these machines, or with the help of the object store. That is asked
        where the machines have no whole step as new as the one `reached`, or nobody knows which that is (None)."""
        held = [held_of(row) for reply in answers.values() for row in reply["held"]]
        for words in disagreements(held):
            print(f"warning: {words}", file=sys.stderr, flush=True)
        state, cloud = newest_state(held, self.run.shapes, self.run.kinds), self.cloud
        if cloud is not None and (state is None or reached is None or state.step < reached):
            try:
                listed = partial(cloud.held, partial(require_step_of, self.run))
                stored = await answered(cloud.what, listed, seconds=ASKING_SECONDS)
                stored = [item for item in stored if self.unsound[item.key] < CHANCES]
                state = newest_state([*held, *stored], self.run.shapes, self.run.kinds)
            except OSError as error:
                if state is None:
                    raise BeginAgainError(f"the object store cannot be read: {error}") from None
                print(f"the object store cannot be read: {error}", file=sys.stderr, flush=True)
            except SpecError as error:
                if state is None:
                    raise OtherRunError(str(error)) from None
                print(f"the object store is not read: {error}", file=sys.stderr, flush=True)
        protected = max(reply["committed"] for reply in answers.values())
        if state is None and (self.damage or protected >= 0):
            why = "; ".join(self.damage) or f"step {protected} was the newest that all machines had"
            raise NothingLeftError(f"no step survives whole: {why}")
        return state

    async def _scale(self, answers: Mapping[str, Message], state: SurvivingState | None) -> Any:
        """Return the loss scale of a state: what a machine says, else the object store."""
        if state is None:
            return None
        said = [reply["scales"][str(state.step)] for reply in answers.values() if str(state.step) in reply["scales"]]
        if said or self.cloud is None:
            return next(iter(said), None)
        try:
            read = partial(self.cloud.manifest, state.step)
            manifest = await answered(self.cloud.what, read, seconds=ASKING_SECONDS)
        except (OSError, SpecError) as error:
            raise BeginAgainError(f"the object store cannot be read: {error}") from None
        return None if manifest.loss_scale is None else dict(manifest.loss_scale)

    async def _next_plan(
        self, base: GenerationBase, number: int, machines: Sequence[Machine], starting: Collection[str]
    ) -> tuple[Plan, Generation]:
        """Return the plan to go on with and the machines that train by it. Those whose workers are `starting` are not
        waited for, save where there is no way on without them. Raises WaitError while there are too few for any."""
        everyone = next_generation(base.generation, machines, number)
        started = [machine for machine in everyone.machines if machine.name not in starting]
        if len(started) < len(machines):
            with suppress(WaitError):
                return await self._plan_for(base, started), replace(everyone, machines=tuple(started))
        return await self._plan_for(base, everyone.machines), everyone

    async def _plan_for(self, base: GenerationBase, machines: Sequence[Machine]) -> Plan:
        """Return the plan to go on with on these machines. Raises WaitError while there are too few for any."""
        first = with_slow_pools(self.options.plan, machines)
        if base.plan == first and fits(first, machines):
            return first
        now = RunPlans(now=base.plan, seated=base.seated, first=first)
        choice = await asyncio.to_thread(choose, now, machines, base.outlook, base.templates, self.options.rates)
        print(choice.reason, file=sys.stderr, flush=True)
        if choice.plan is None:
            raise WaitError(choice.reason, choice.again_seconds)
        return choice.plan

    async def _move(
        self,
        recovery: Recovery,
        generation: Generation,
        going: Sequence[Machine],
        plan: Plan,
        where: Sequence[RankSeat],
        state: SurvivingState,
        scale: Any,
    ) -> None:
        needs = machine_needs(layout_of(plan), where, self.run.kinds, state, self.run.shapes)
        machines = (*generation.machines, *going)
        names = [machine.name for machine in machines]
        moves = movement(state, needs, names, bandwidths_of(len(machines), self.options.rates))
        if len(moves.plan.lost):
            raise BeginAgainError("pieces of the state survive nowhere")
        recovery.moved(moves)
        orders = orders_of(moves, state, machines)
        fields = {"generation": generation.number, "step": state.step, "scale": scale}
        fields["of_generation"] = max(item.generation for items in state.pieces.values() for item in items)
        replies = await self.members.ask_each("fetch", {name: orders[name] | fields for name in generation.names})
        failed = [(name, item) for name, reply in replies.items() for item in reply["failed"]]
        self.unsound.update({key for _, item in failed for key in _unsound_in_cloud(*item)})
        for words, rows in _by_reason(failed).items():
            self.damage.append(f"{len(rows)} pieces, among them the {rows[0][0]} of {rows[0][1]}: {words}")
            print(self.damage[-1], file=sys.stderr, flush=True)
            await self.members.ask_all("damaged", rows=rows, generation=generation.number)
        if failed:
            raise BeginAgainError(f"{len(failed)} pieces were damaged or did not arrive")


def _unsound_in_cloud(row: Sequence[Any], sources: Sequence[str], why: str) -> Iterator[Key]:
    """Yield the piece of a row that the object store gave otherwise than it was written."""
    if "" in sources and why.startswith(UNSOUND):
        (stored,) = pieces_of([row])
        yield stored.piece, stored.hash


def _by_reason(failed: Sequence[tuple[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    """Return the rows of pieces that did not arrive, by where they were to come from and go, and why not."""
    return grouped(
        (f"from {' and '.join(source or 'the object store' for source in sources)} to {name}: {why}", row)
        for name, (row, sources, why) in failed
    )


RECOVERIES = "recoveries.jsonl"


@dataclass(kw_only=True)
class Recovery:
    """One way from a generation to the next: its cause, when that was noticed, and the seconds of each part: attempts
    that failed, until all were halted, until state and processes were in order, for the plan, for moving, until all
    could train."""

    cause: str
    began: float
    seconds: dict[str, float] = field(default_factory=dict)
    moved_bytes: dict[str, int] = field(default_factory=dict)
    predicted_seconds: float = 0.0
    generation: int = 0
    machines: tuple[str, ...] = ()
    step: int = 0
    ranks: int = 0

    def lap(self, part: str) -> None:
        self.seconds[part] = time.monotonic() - self.began - sum(self.seconds.values())

    def moved(self, moves: Movement) -> None:
        """Note what a plan of transfers moves, by where it comes from."""
        self.moved_bytes, self.predicted_seconds = moved_bytes(moves), moves.plan.seconds

    def reached(self, generation: Generation, step: int, plan: Plan) -> None:
        """Note where the run goes on."""
        self.generation, self.machines, self.step, self.ranks = generation.number, generation.names, step, plan.gpus

    def tell(self, out: Path) -> None:
        parts = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in self.seconds.items())
        sources = ", ".join(f"{format_bytes(size)} from {name}" for name, size in self.moved_bytes.items() if size)
        moved = f"; {sources}" if sources else ""
        ranks, machines = counted(self.ranks, "rank"), counted(len(self.machines), "machine")
        goes = "goes" if self.ranks == 1 else "go"
        print(
            f"generation {self.generation} ({self.cause}): {ranks} on {machines} {goes} on at step {self.step}; "
            f"{parts}{moved}",
            file=sys.stderr,
            flush=True,
        )
        document: dict[str, Any] = asdict(self) | {"began": time.time()}
        with (out / RECOVERIES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")


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
    layout = layout_of(choice.plan)
    shapes, kinds = parameter_shapes(layout), state_kinds(layout, METHOD_OF[now.job.optimizer])
    state = newest_state([held_of(row) for answer in answers for row in answer["held"]], shapes, kinds)
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
