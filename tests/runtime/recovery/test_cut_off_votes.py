"""No step is committed from a collective that was aborted. NCCL's return then without an error, and what they return is
not summed; a process group that does the same stands in for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from tests.runtime.recovery.fleet import MODEL
from tests.runtime.samples import plan_of, replica, stage, under

from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import seeded
from shardwright.runtime.recovery.run import Report, settle
from shardwright.runtime.recovery.worker import rendezvous
from shardwright.runtime.recovery.worker.link import OutsideError
from shardwright.runtime.recovery.worker.snapshot import Interval, Writer
from shardwright.runtime.recovery.worker.training import RankState
from shardwright.runtime.state.recipe import Recipe
from shardwright.runtime.step.engine import make_engine, train_step

RANKS, MOST_CALLS = 2, 200


@dataclass
class Fabric:
    """What connects this rank to one that computes the same. After `calls` collectives it is cut: what comes then
    returns at once, without an error and unreduced. `on_cut` is called just before."""

    calls: int = MOST_CALLS
    made: int = 0
    on_cut: Callable[[], None] = lambda: None
    names: list[str] = field(default_factory=list)

    def alive(self, name: str) -> bool:
        self.made += 1
        self.names.append(name)
        if self.made == self.calls:
            self.on_cut()
        return self.made < self.calls


FABRIC = Fabric()


class Done(dist._Work):  # type: ignore[name-defined,misc]
    def wait(self, timeout: Any = None) -> bool:
        return True

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future


class Cuttable(dist.ProcessGroup):  # type: ignore[name-defined,misc]
    """A group of two ranks that hold the same."""

    def allreduce(  # type: ignore[override]
        self, tensors: list[torch.Tensor], _options: Any = None
    ) -> Done:
        if FABRIC.alive("allreduce"):
            for tensor in tensors:
                tensor.mul_(RANKS)
        return Done()

    def allreduce_coalesced(self, tensors: list[torch.Tensor], options: Any = None) -> Done:
        return self.allreduce(tensors, options)

    def all_gather_single(self, whole: torch.Tensor, part: torch.Tensor, _options: Any = None) -> Done:
        if FABRIC.alive("allgather"):
            whole.copy_(part.repeat(RANKS))
        return Done()

    def reduce_scatter_single(self, part: torch.Tensor, whole: torch.Tensor, _options: Any = None) -> Done:
        if FABRIC.alive("reduce scatter"):
            part.copy_(whole.view(RANKS, -1)[0] * RANKS)
        return Done()

    def all_to_all_single(self, whole: torch.Tensor, *_: Any) -> Done:
        if FABRIC.alive("all to all"):
            whole.fill_(0.5)
        return Done()

    def barrier(self, **_: Any) -> Done:  # type: ignore[override]
        FABRIC.alive("barrier")
        return Done()

    def size(self) -> int:
        return RANKS

    def getBackendName(self) -> str:  # noqa: N802
        return "cuttable"


def _made(_store: Any, rank: int, size: int, _timeout: Any) -> Any:
    return Cuttable(rank, size)


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    if not hasattr(dist.Backend, "CUTTABLE"):
        dist.Backend.register_backend("cuttable", _made, devices=["cpu"])
    dist.init_process_group("cuttable", store=dist.HashStore(), rank=0, world_size=RANKS)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def state_of(sharding: str, optimizer: str) -> RankState:
    """Return a rank that has done three steps in a generation that lasts until `over`."""
    whole = replica(stage((0, 4)), count=RANKS, micro_batches=2)
    plan = under(cast(Any, optimizer), plan_of(MODEL, whole, sharding=cast(Any, sharding)))
    layout = layout_of(plan)
    engine = make_engine(
        layout, 0, make_process_groups(layout, 0), details=Details(), initial=seeded(plan.model, 1), precision="fp32",
        recipe=Recipe(method="muon" if optimizer == "muon" else "adamw"), device=torch.device("cpu"),
    )  # fmt: skip
    report = Report(step=3, vote_step=2, vote=(1.0, 1.0, 0.0))
    over: list[bool] = []
    state = RankState(
        engine=engine, writer=cast(Writer, None), report=report, interval=Interval(every=100, protected=3),
        over=lambda: bool(over),
    )  # fmt: skip
    FABRIC.on_cut = lambda: over.append(True)
    return state


def stepped(state: RankState) -> None:
    tokens = torch.arange(34).view(1, 34) % 257
    state.begin(4)
    train_step(
        state.engine, lambda _: (tokens[:, 0:16], tokens[:, 1:17]), state.report.step, note=state.note, phases=state
    )


def masters(state: RankState) -> list[torch.Tensor]:
    return [slot.master for slot in state.engine.slots]


WAYS = [("none", "adam"), ("zero1", "adam"), ("zero1", "muon")]


@pytest.mark.parametrize("told", [True, False], ids=["the keeper has said so", "nobody has said so"])
@pytest.mark.parametrize(("sharding", "optimizer"), WAYS)
def test_nothing_is_committed_wherever_a_step_is_cut(sharding: str, optimizer: str, *, told: bool) -> None:
    """A generation that is over is told before its groups are aborted; a group may also fail by itself. What the rank
    then reports of the step must move nobody: it knows no outcome, or the true one."""
    FABRIC.__dict__.update(calls=MOST_CALLS, made=0, names=[])
    whole = state_of(sharding, optimizer)
    FABRIC.on_cut = lambda: None
    stepped(whole)
    (calls, true), committed = (FABRIC.made, whole.report.vote), 0
    assert whole.report.step == 4 and "allreduce" in FABRIC.names
    for cut in range(1, calls + 1):
        FABRIC.__dict__.update(calls=MOST_CALLS, made=0)
        state = state_of(sharding, optimizer)
        if not told:
            FABRIC.on_cut = lambda: None
        before = [master.clone() for master in masters(state)]
        FABRIC.__dict__.update(calls=cut, made=0)
        with suppress(OutsideError, dist.DistError):
            stepped(state)
        report = state.report
        assert report.vote_step == 2 or report.vote == true, f"cut at {FABRIC.names[cut - 1]} {cut} of {calls}"
        if report.step == 3:
            assert all(map(torch.equal, masters(state), before))
            assert settle([report]).step == 3 or report.vote == true
        else:
            assert all(map(torch.equal, masters(state), masters(whole))), FABRIC.names[cut - 1]
        committed += report.step == 4
    assert committed < calls, "of the last collectives, which bring updated weights, the step may be whole"


def test_an_abort_takes_the_group_that_votes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an aborted group leaves of gradients must come to no vote that counts this rank."""
    order: list[str] = []
    groups = {Aborted(name, order): None for name in ("world", "gradients", "meeting")}
    monkeypatch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(pg_map=groups))
    rendezvous.interrupt(cast(Any, Aborted("sockets", order)), torch.device("cuda"))
    assert order == ["world", "gradients", "meeting", "sockets"]


class Aborted:
    """A group, or sockets, whose end is noted."""

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self.order = name, order

    def abort(self) -> None:
        self.order.append(self.name)

    cut = abort
