"""From one generation to the next where state is lost or damaged. The machines are played."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import inf, prod
from pathlib import Path
from typing import Any, cast

import pytest
from tests.runtime.recovery.fleet import copies, settings_in
from tests.runtime.recovery.store import store

from shardwright.recovery.quorum import Generation, Machine
from shardwright.recovery.transfer import MEMORY
from shardwright.recovery.ways import NextPlan
from shardwright.runtime.job.course import RunIdentity, identity_of
from shardwright.runtime.recovery.change import generation_change
from shardwright.runtime.recovery.change.generation_change import (
    GenerationChange,
    NothingLeftError,
    OtherRunError,
    Ready,
    Recovery,
)
from shardwright.runtime.recovery.fleet.membership import BeginAgainError, Member, Members, QuorumCheck
from shardwright.runtime.recovery.run import GenerationBase, KeeperOptions, Report
from shardwright.runtime.recovery.state.cloud import Cloud
from shardwright.runtime.recovery.state.inventory import HeldPiece, held_row
from shardwright.runtime.recovery.state.transfers import UNSOUND
from shardwright.runtime.recovery.wire import Channel, LostError, Message, Reply
from shardwright.runtime.state.pieces import StatePiece, StoredPiece
from shardwright.runtime.storage.manifest import Manifest

NAMES = ("m0", "m1", "m2")


class Playing:
    """A connection to a machine that holds `pieces`; `spoilt` is the step whose pieces do not come as they were written,
    `step` where its worker is, if it has one."""

    def __init__(self, spoilt: int = -1, step: int | None = None, pieces: Sequence[HeldPiece] = ()) -> None:
        self.spoilt, self.held = spoilt, [held_row(piece) for piece in pieces]
        self.scales = {str(piece.step): None for piece in pieces}
        self.reports = {} if step is None else {"0": asdict(Report(step=step))}

    async def call(self, op: str, **fields: Any) -> Reply:
        replies: Mapping[str, Message] = {
            "halt": {"reports": self.reports},
            "settle": {"held": self.held, "scales": self.scales, "committed": 7},
            "fetch": {"failed": []},
            "damaged": {},
        }
        if op == "fetch" and fields["step"] == self.spoilt:
            return {"failed": [[row, [""], UNSOUND] for row, _ in fields["wanted"]]}, b""
        return replies[op], b""


def change_from(folder: Path, cloud: Cloud | None, spoilt: int = -1) -> tuple[GenerationChange, GenerationBase]:
    plan = copies(3)
    gpu = plan.cluster.pools[0].gpu.name
    machines = tuple(Machine(name=name, host="h", port=1, gpu=gpu, gpus=1) for name in NAMES)
    options = KeeperOptions(
        machine=machines[0],
        join=(),
        plan=plan,
        settings=settings_in(folder),
        memory=folder,
    )
    run = identity_of(plan, options.settings)
    channel = cast(Channel, Playing(spoilt))
    members = Members(by_name={machine.name: Member(machine=machine, channel=channel) for machine in machines})
    quorum = QuorumCheck(me="m0", run=run.name, claim_store=None, silence_seconds=1.0, wait_seconds=1.0)
    change = GenerationChange(options=options, run=run, members=members, cloud=cloud, quorum=quorum)
    return change, GenerationBase(generation=Generation(number=4, machines=machines), plan=options.plan)


def passed(change: GenerationChange, base: GenerationBase) -> Ready:
    return asyncio.run(change.prepare(base, 5, Recovery(cause="", began=0.0)))


def whole(run: RunIdentity, step: int) -> Iterator[StoredPiece]:
    """Yield all of a step, as whole parameters."""
    for name, cut in run.shapes.items():
        for kind in run.kinds[name]:
            elements = prod(cut.shape)
            piece = StatePiece(kind=kind, parameter=name, start=0, stop=cut.shape[cut.dim], low=0, high=elements)
            yield StoredPiece(
                piece=piece, file="a.state", offset=0, bytes=4 * elements, dtype="float32", hash=f"{step}"
            )


def stored(cloud: Cloud, run: RunIdentity, steps: Sequence[int]) -> None:
    """Put steps into an object store."""
    for step in steps:
        cloud.commit(
            Manifest(
                step=step,
                model=run.model,
                parameters=run.shapes,
                pieces=tuple(whole(run, step)),
                settings=run.course.settings,
                data=run.course.data,
                random=run.course.random,
                loss_scale={"scale": 8.0 * step},
            )
        )


def with_decay(run: RunIdentity, weight_decay: float) -> RunIdentity:
    course = run.course
    return replace(run, course=replace(course, settings={**course.settings, "weight_decay": weight_decay}))


def test_a_run_whose_protected_state_is_lost_stops_and_does_not_begin_anew(tmp_path: Path) -> None:
    change, base = change_from(tmp_path, None)
    with pytest.raises(NothingLeftError, match="no step survives whole: step 7 was the newest that all machines had"):
        passed(change, base)


def test_an_older_step_is_taken_where_the_store_spoilt_the_newest(tmp_path: Path) -> None:
    """It has a second chance, as what came may have been spoilt on its way."""
    with store() as (_, url):
        cloud = Cloud(url)
        change, base = change_from(tmp_path, cloud, spoilt=10)
        stored(cloud, change.run, (5, 10))
        for _ in range(2):
            with pytest.raises(BeginAgainError, match="pieces were damaged or did not arrive"):
                passed(change, base)
        ready = passed(change, base)
        assert (ready.step, ready.scale) == (5, {"scale": 40.0})


def test_a_run_does_not_begin_with_what_another_put_into_its_store(tmp_path: Path) -> None:
    with store() as (_, url):
        cloud = Cloud(url)
        change, base = change_from(tmp_path, cloud)
        stored(cloud, with_decay(change.run, 0.5), (5,))
        words = "step 5 in the object store: was written with weight_decay 0.5, this run has 0.1"
        with pytest.raises(OtherRunError, match=words):
            passed(change, base)


def test_a_run_goes_on_with_what_it_has_where_another_used_its_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with store() as (_, url):
        cloud = Cloud(url)
        change, base = change_from(tmp_path, cloud)
        stored(cloud, with_decay(change.run, 0.5), (5,))
        pieces = [
            HeldPiece(machine="m1", tier=MEMORY, step=3, generation=4, stored=piece) for piece in whole(change.run, 3)
        ]
        change.members.change("m1", channel=cast(Channel, Playing(step=5, pieces=pieces)))
        assert passed(change, base).step == 3
        assert "the object store is not read: step 5 in the object store: was written with" in capsys.readouterr().err


def test_a_machine_that_was_once_alone_has_its_patience_again_in_the_next_generation(tmp_path: Path) -> None:
    """It went on; cut off later, it would not leave the others the time to go on without it."""
    with store() as (_, url):
        cloud = Cloud(url)
        change, base = change_from(tmp_path, cloud)
        stored(cloud, change.run, (5,))
        assert passed(change, replace(base, minority_since=0.0)).base.minority_since == inf


@pytest.mark.parametrize(
    ("trained", "decided", "going"),
    [
        pytest.param(True, True, 2, id="the others train on"),
        pytest.param(True, False, 3, id="there is no way on without it"),
        pytest.param(False, True, 3, id="nothing trains that would have to wait"),
    ],
)
def test_a_machine_whose_workers_start_is_waited_for_where_that_has_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, going: int, *, trained: bool, decided: bool
) -> None:
    if not decided:
        monkeypatch.setattr(generation_change, "choose", lambda *_: NextPlan(plan=None, reason="wait"))
    with store() as (_, url):
        cloud = Cloud(url)
        change, base = change_from(tmp_path, cloud)
        stored(cloud, change.run, (5,))
        for name in NAMES[:2] if trained else ():
            change.members.change(name, channel=cast(Channel, Playing(step=5)))
        change.members.change(NAMES[2], ready=False)
        assert passed(change, base).base.generation.names == NAMES[:going]


def test_a_machine_that_is_lost_while_the_claim_is_made_is_no_part_of_the_majority(tmp_path: Path) -> None:
    """Of three, m1 and m2 are lost: with m1 still there the first may go on, alone it may not. So it must not where m1
    goes between the count and the halt: m1 may follow the same generation with m2."""
    change, base = change_from(tmp_path, None)
    del change.members.by_name["m2"]

    class Slow(QuorumCheck):
        async def require(self, before: Generation, present: Collection[str], alone_since: float) -> bool:
            majority = await super().require(before, present, alone_since)
            del change.members.by_name["m1"]
            return majority

    quorum = Slow(me="m0", run=change.run.name, claim_store=None, silence_seconds=1.0, wait_seconds=1.0)
    with pytest.raises(LostError, match="m1 is lost"):
        passed(replace(change, quorum=quorum), base)
