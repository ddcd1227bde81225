"""Whether the machines that are there may go on (`recovery.quorum`), asked of those that are not and of the store of
claims: the object store, or etcd by the JSON that its version 3 takes over HTTP. No PyTorch."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from shardwright.errors import SpecError
from shardwright.records import record
from shardwright.recovery.quorum import Claim, Generation, Quorum, gives_way, quorum
from shardwright.runtime.recovery.wire import answered, refuses

GRACE = 3.0
"""Multiple of `silence_seconds` for which a minority leaves the claim to a majority, which finds the loss, a
coordinator and each other in that time."""

ASKING_SECONDS = 10.0
"""So long the store of claims has for an answer."""


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
        """Return the claim to follow a generation."""
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
