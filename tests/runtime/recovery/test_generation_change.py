"""From one generation to the next where state is lost or damaged. The machines are played."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import inf, prod
from pathlib import Path
from typing import Any, cast

import pytest
from tests.runtime.recovery.fleet import copies, settings_in
from tests.runtime.recovery.store import store

from shardwright.recovery.quorum import Generation, Machine
from shardwright.recovery.ways import NextPlan
from shardwright.runtime.job.course import RunIdentity, identity_of
from shardwright.runtime.recovery.change import generation_change
from shardwright.runtime.recovery.change.generation_change import GenerationChange, NothingLeftError, Ready, Recovery
from shardwright.runtime.recovery.fleet.claims import Arbiter
from shardwright.runtime.recovery.fleet.membership import BeginAgainError, Member, Members
from shardwright.runtime.recovery.run import GenerationBase, KeeperOptions, Report
from shardwright.runtime.recovery.state.cloud import Cloud
from shardwright.runtime.recovery.state.transfers import UNSOUND
from shardwright.runtime.recovery.wire import Channel, Message, Reply
from shardwright.runtime.state.pieces import StatePiece, StoredPiece
from shardwright.runtime.storage.manifest import Manifest

NAMES = ("m0", "m1", "m2")


class Playing:
    """A connection to a machine that holds nothing; `spoilt` is the step whose pieces do not come as they were written,
    `step` where its worker is, if it has one."""

    def __init__(self, spoilt: int = -1, step: int | None = None) -> None:
        self.spoilt = spoilt
        self.reports = {} if step is None else {"0": asdict(Report(step=step))}

    async def call(self, op: str, **fields: Any) -> Reply:
        replies: Mapping[str, Message] = {
            "halt": {"reports": self.reports},
            "settle": {"held": [], "scales": {}, "committed": 7},
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
    arbiter = Arbiter(me="m0", run=run.name, claim_store=None, silence_seconds=1.0, wait_seconds=1.0)
    change = GenerationChange(options=options, run=run, members=members, cloud=cloud, arbiter=arbiter)
    return change, GenerationBase(generation=Generation(number=4, machines=machines), plan=options.plan)


def passed(change: GenerationChange, base: GenerationBase) -> Ready:
    return asyncio.run(change.prepare(base, 5, Recovery(cause="", began=0.0)))


def stored(cloud: Cloud, run: RunIdentity, steps: Sequence[int]) -> None:
    """Put steps into an object store, as whole parameters."""
    pieces = []
    for name, cut in run.shapes.items():
        for kind in run.kinds[name]:
            elements = prod(cut.shape)
            piece = StatePiece(kind=kind, parameter=name, start=0, stop=cut.shape[cut.dim], low=0, high=elements)
            pieces.append((piece, elements * 4))
    for step in steps:
        found = tuple(
            StoredPiece(piece=piece, file="a.state", offset=0, bytes=size, dtype="float32", hash=f"{step}")
            for piece, size in pieces
        )
        told = {"data": {"samples": 0}, "random": {"seed": 0}, "settings": {}, "loss_scale": {"scale": 8.0 * step}}
        cloud.commit(Manifest(step=step, model=run.model, parameters=run.shapes, pieces=found, **told))


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
