"""The machines of a run, without PyTorch: what those say of themselves that answer (`recovery.quorum`), those that have
joined the coordinator and what all of them are asked at once, and waiting for enough of them; and whether they may go
on (`recovery.quorum`), asked of those that are not there and of the store of claims: the object store, or etcd by the
JSON that its version 3 takes over HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import partial
from typing import Any, Protocol

from shardwright.errors import SpecError
from shardwright.records import record
from shardwright.recovery.quorum import Address, Claim, Generation, Machine, Quorum, Standing, fits, gives_way, quorum
from shardwright.runtime.recovery.run import KeeperOptions
from shardwright.runtime.recovery.state.cloud import Cloud
from shardwright.runtime.recovery.wire import Channel, LostError, Message, StrangerError, answer_of, answered, refuses

# Multiple of `silence_seconds` for which a minority leaves the claim to a majority, which finds the loss, a coordinator
# and each other in that time.
GRACE = 3.0

ASKING_SECONDS = 10.0  # so long the store of claims has for an answer


class ClaimStore(Protocol):
    """Where one group alone can claim to follow a generation: the object store, or etcd. Calls block, and raise OSError
    where it does not answer."""

    @property
    def what(self) -> str: ...
    def claim(self, run: str, number: int, content: str) -> str: ...
    def claimed(self, run: str, number: int) -> str: ...
    def claims(self, run: str) -> list[int]: ...


class MinorityError(Exception):
    """Others may be going on without these machines."""


@record
class QuorumCheck:
    """What a coordinator on machine `me` of the run named `run` needs to find out. Where no store of claims decides, a
    minority waits `wait_seconds`."""

    me: str
    run: str
    claim_store: ClaimStore | None
    silence_seconds: float
    wait_seconds: float

    async def require(self, before: Generation, present: Collection[str], minority_since: float) -> bool:
        """Return whether those present are a majority of a generation. Raises MinorityError where others may go on
        after it, or have gone on; `minority_since` (monotonic) is when these were first too few."""
        outcome = quorum(before, present)
        if not outcome.majority:
            absent = {name for name in before.names if name not in present}
            patience = self.wait_seconds if self.claim_store is None else GRACE * self.silence_seconds
            if time.monotonic() - minority_since < patience and await _gone(before, absent) != absent:
                raise MinorityError(f"{outcome.reason}; this machine waits for the others")
            print(f"{outcome.reason}, and the others are taken to be gone", file=sys.stderr, flush=True)
        if self.claim_store is not None:
            await self._claim(self.claim_store, before, outcome, present)
        return outcome.majority

    async def first_free(self) -> int:
        """Return the number after the last that was claimed to be followed: where a run goes on that nobody
        remembers."""
        if self.claim_store is None:
            return 0
        try:
            claims = partial(self.claim_store.claims, self.run)
            return max(await answered(self.claim_store.what, claims, seconds=ASKING_SECONDS), default=-1) + 1
        except (OSError, SpecError) as error:
            print(f"nobody can say if this run was there before: {error}", file=sys.stderr, flush=True)
            return 0

    async def _claim(
        self, claim_store: ClaimStore, before: Generation, outcome: Quorum, present: Collection[str]
    ) -> None:
        """Claim to follow a generation, or raise MinorityError. A majority goes on where the store of claims is
        down."""
        claim = Claim(by=self.me, machines=tuple(present), majority=outcome.majority)
        try:
            asked = partial(_claims, claim_store, self.run, before.number, claim)
            claims = await answered(claim_store.what, asked, seconds=ASKING_SECONDS)
        except (OSError, SpecError, ValueError) as error:  # the last: of a writer that was killed
            print(f"there is no arbiter now: {error}", file=sys.stderr, flush=True)
            if not outcome.majority:
                raise MinorityError(f"{outcome.reason}, and nobody is to go on; this machine waits") from None
            return
        for number, other in enumerate(claims):
            gone = await _gone(before, {*other.machines} - {*present})
            if gives_way(claim, other, gone, alone=number > 0 or not before.machines):
                raise MinorityError(f"{outcome.reason}, and {other} is to go on; this machine waits")


def _claims(claim_store: ClaimStore, run: str, number: int, claim: Claim) -> list[Claim]:
    """Claim to follow a generation; return the claim to it that stands, and those to follow later ones. Raises
    ValueError where one of them is not whole."""
    texts = [claim_store.claim(run, number, json.dumps(asdict(claim)))]
    texts += [claim_store.claimed(run, later) for later in claim_store.claims(run) if later > number]
    return [Claim(**json.loads(text)) for text in texts]


async def _gone(before: Generation, names: Collection[str]) -> set[str]:
    """Return those of some machines of a generation at whose addresses nobody listens any more."""
    machines = [machine for machine in before.machines if machine.name in names]
    answers = await asyncio.gather(*(refuses(*machine.address) for machine in machines))
    return {machine.name for machine, refused in zip(machines, answers, strict=True) if refused}


ANSWER_SECONDS = 3.0


@record
class Etcd:
    """The members of an etcd cluster; any of them answers for all. Calls block, and raise OSError where none does."""

    members: Sequence[tuple[str, int]]
    what: str = "etcd"

    def claim(self, run: str, number: int, content: str) -> str:
        """Claim to follow a generation of a run, and return the claim that stands: this one, or the first."""
        key = _coded(_key(run, number))
        nobody = {"key": key, "target": "CREATE", "result": "EQUAL", "createRevision": "0"}
        put = {"requestPut": {"key": key, "value": _coded(content)}}
        answer = self._asked(
            "txn", {"compare": [nobody], "success": [put], "failure": [{"requestRange": {"key": key}}]}
        )
        if answer.get("succeeded"):
            return content
        return _values(answer["responses"][0]["response_range"])[0]

    def claimed(self, run: str, number: int) -> str:
        return _values(self._asked("range", {"key": _coded(_key(run, number))}))[0]

    def claims(self, run: str) -> list[int]:
        """Return the numbers of the generations of a run that were claimed to be followed, in order."""
        first, after = _key(run, 0), _key(run, 10**6 - 1) + "\0"
        answer = self._asked("range", {"key": _coded(first), "range_end": _coded(after), "keys_only": True})
        return sorted(int(b64decode(item["key"]).decode().rpartition("-")[2]) for item in answer.get("kvs", ()))

    def _asked(self, what: str, message: dict[str, Any]) -> dict[str, Any]:
        opener, reasons = urllib.request.build_opener(urllib.request.ProxyHandler({})), []
        for host, port in self.members:
            url = f"http://{host}:{port}/v3/kv/{what}"
            request = urllib.request.Request(url, data=json.dumps(message).encode())
            try:
                with opener.open(request, timeout=ANSWER_SECONDS) as answer:
                    return dict(json.load(answer))
            except (OSError, ValueError) as error:
                reasons.append(f"{host}:{port}: {error}")
        raise OSError(f"etcd does not answer: {'; '.join(reasons)}")


def _key(run: str, number: int) -> str:
    return f"shardwright/{run}/after-{number:06d}"


def _coded(text: str) -> str:
    return b64encode(text.encode()).decode()


def _values(answer: dict[str, Any]) -> list[str]:
    """Return the values of a range. Raises OSError where it has none."""
    values = [b64decode(item["value"]).decode() for item in answer.get("kvs", ())]
    if not values:
        raise OSError("etcd has no such claim any more")
    return values


class BeginAgainError(Exception):
    """A recovery must begin anew; the message says why."""


@record
class Member:
    """A machine that has joined, the connection to it, and whether its workers have started."""

    machine: Machine
    channel: Channel
    ready: bool = True


@record
class Members:
    """Who is there, by name."""

    by_name: dict[str, Member] = field(default_factory=dict)

    @property
    def machines(self) -> list[Machine]:
        return [member.machine for member in self.by_name.values()]

    @property
    def addresses(self) -> frozenset[Address]:
        return frozenset(machine.address for machine in self.machines)

    def name_of(self, channel: Channel) -> str:
        """Return whose connection this is, "" if nobody's."""
        return next((name for name, member in self.by_name.items() if member.channel is channel), "")

    @property
    def starting(self) -> frozenset[str]:
        """The machines whose workers have not started yet."""
        return frozenset(name for name, member in self.by_name.items() if not member.ready)

    def put(self, machine: Machine, channel: Channel, *, ready: bool) -> None:
        """Take a machine in, in place of what it was before."""
        old = self.by_name.pop(machine.name, None)
        self.by_name[machine.name] = Member(machine=machine, channel=channel, ready=ready)
        if old is not None and old.channel is not channel:
            old.channel.close("it joined again")

    def change(self, name: str, **changes: Any) -> None:
        """Know something else of a machine, if it is still there."""
        if name in self.by_name:
            self.by_name[name] = replace(self.by_name[name], **changes)

    def named(self, names: Collection[str]) -> list[Machine]:
        """Return machines by their names. Raises LostError where one is not there any more."""
        lost = [name for name in names if name not in self.by_name]
        if lost:
            raise LostError(f"{lost[0]} is lost")
        return [self.by_name[name].machine for name in names]

    def close(self, reason: str) -> None:
        for member in list(self.by_name.values()):
            member.channel.close(reason)

    async def ask_all(self, op: str, **fields: Any) -> dict[str, Message]:
        """Return the replies of all machines. Raises LostError as soon as one of them is lost."""
        return await self.ask_each(op, dict.fromkeys(self.by_name, fields))

    async def ask_each(self, op: str, fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Message]:
        """Return the replies of machines to questions of their own. Raises as `ask_all`."""

        async def ask(name: str) -> Message:
            member = self.by_name.get(name)
            if member is None:
                raise LostError(f"{name} is lost")
            reply, _ = await member.channel.call(op, **fields[name])
            if reply.get("unready"):
                raise BeginAgainError(f"a worker of {name} did not start: {reply['unready']}")
            return reply

        names = list(fields)
        return dict(zip(names, await asyncio.gather(*(ask(name) for name in names)), strict=True))

    async def tell_all(self, op: str, seconds: float, **fields: Any) -> None:
        """Say something to all machines, whether they hear it or not."""
        calls = (member.channel.call(op, timeout=seconds, **fields) for member in self.by_name.values())
        await asyncio.gather(*calls, return_exceptions=True)


JOINING = 2.0  # multiple of `silence_seconds` for which a new coordinator waits for the machines of the generation


async def wait_for_generation(
    options: KeeperOptions, before: Generation, here: Collection[Address], members: Members, changed: asyncio.Event
) -> None:
    """Wait for the machines of a generation that answered at their addresses; `changed` is set when one has come."""
    expected = {machine.name for machine in before.machines if machine.address in here}
    end = time.monotonic() + JOINING * options.silence_seconds
    while not expected <= members.by_name.keys() and time.monotonic() < end:
        await _until(changed, end)


async def wait_for_plan(options: KeeperOptions, members: Members, changed: asyncio.Event, cloud: Cloud | None) -> None:
    """Wait for as many machines as the first plan needs. Raises MinorityError where fewer have come in time, and new
    steps in the object store show that others train."""
    stored, end = await _newest(cloud), time.monotonic() + options.wait_seconds
    while not fits(options.plan, members.machines):
        if time.monotonic() > end:
            if await _newest(cloud) != stored:
                raise MinorityError("the object store has new steps of this run; this machine waits for the others")
            return
        await _until(changed, end)


async def _until(changed: asyncio.Event, end: float) -> None:
    changed.clear()
    with_limit = asyncio.wait_for(changed.wait(), max(end - time.monotonic(), 0.01))
    await asyncio.gather(with_limit, return_exceptions=True)


async def _newest(cloud: Cloud | None) -> int:
    """Return the newest step in the object store, -1 where nothing is known of one."""
    if cloud is None:
        return -1
    try:
        return max(await answered(cloud.what, cloud.steps), default=-1)
    except OSError:
        return -1


def standing_data(standing: Standing) -> dict[str, Any]:
    number, machines = standing.generation.number, [asdict(machine) for machine in standing.generation.machines]
    return {
        "address": standing.address,
        "generation": {"number": number, "machines": machines},
        "leader": standing.leader,
    }


def standing_of(data: Mapping[str, Any]) -> Standing:
    number, machines = data["generation"]["number"], data["generation"]["machines"]
    generation = Generation(number=number, machines=tuple(Machine(**item) for item in machines))
    return Standing(
        address=tuple(data["address"]), generation=generation, leader=data["leader"] and tuple(data["leader"])
    )


async def ask_standings(
    mine: Standing, addresses: Collection[Address], seconds: float, secret: bytes = b""
) -> list[Standing]:
    """Return the standing of this machine and of all that answer within so many seconds, at these addresses and where
    they say that their coordinators are. They hear where this machine's is. Raises StrangerError where all who answer
    have another secret, and this machine is of no generation yet: one of them is wrong."""
    standings, asked, asking = [mine], {mine.address}, set(addresses) - {mine.address}
    strangers: list[StrangerError] = []
    while asking:
        calls = (_standing_at(address, mine, seconds, secret) for address in sorted(asking))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        here = [answer for answer in answers if isinstance(answer, Standing)]
        strangers += [answer for answer in answers if isinstance(answer, StrangerError)]
        standings, asked = standings + here, asked | asking
        asking = {standing.leader for standing in here if standing.leader is not None} - asked
    if strangers and len(standings) == 1 and not mine.generation.machines:
        raise strangers[0]
    return standings


async def _standing_at(address: Address, mine: Standing, seconds: float, secret: bytes) -> Standing:
    """Return what a machine says of itself. Raises LostError, or what else keeps it from being understood."""
    return standing_of(await answer_of(address, "standing", secret=secret, timeout=seconds, leader=mine.leader))
