"""What every part of a run goes by: what a keeper is told on the command line of its machine, the generation before
with its plan, and the step on which the survivors of a loss settle. No PyTorch.

A step ends with a vote: one sum over all ranks, which a rank joins only once all its gradients are summed. So where one
survivor knows the outcome, every survivor has what it needs for the update, which is local and the same wherever it
runs: those that lost the connection before they had the outcome are told it. Where no survivor knows it, none has
updated anything. Either way all are on one step, and no copy of the state had to be kept for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.recovery.outlook import Outlook, Rates
from shardwright.recovery.quorum import Generation, Machine
from shardwright.recovery.ways import Templates
from shardwright.runtime.job.settings import Settings

ENDED, GAVE_UP, BAD_INPUT = 0, 1, 2  # how keepers exit
SIGNAL_SECONDS = 30.0  # so long a machine has after SIGTERM where nothing else is said


@record
class Service:
    """A metadata service: its cloud, and where it is."""

    cloud: str
    url: str


@record
class KeeperOptions:
    """`machine` as others reach it; `join` where they may be, its own address first on the one that begins. Snapshots
    are taken every `snapshot_every` steps into `memory`, written to `disk` and to the URL `upload` where these are
    given; claims to go on are made in `etcd`, else in `upload`. A machine silent for `silence_seconds` is lost, and a
    worker that is stopped (`worker_pool.starving`). With fewer machines than any plan needs, the others wait
    `wait_seconds` for more. `notices` say when the machine is taken away; SIGTERM: in `notice_seconds`. What each rank
    prints is kept in `logs` too. Who has not the `secret` of the run is answered nothing."""

    machine: Machine
    join: tuple[tuple[str, int], ...]
    plan: Plan
    settings: Settings
    memory: Path
    disk: Path | None = None
    upload: str = ""
    etcd: tuple[tuple[str, int], ...] = ()
    snapshot_every: int = 10
    spares: int = 1
    beat_seconds: float = 0.5
    silence_seconds: float = 5.0
    wait_seconds: float = 600.0
    notices: tuple[Service, ...] = ()
    notice_seconds: float = SIGNAL_SECONDS
    logs: Path | None = None
    secret: bytes = field(default=b"", repr=False)
    rates: Rates = field(default_factory=Rates)

    @property
    def address(self) -> tuple[str, int]:
        return self.machine.host, self.machine.port


@record
class GenerationBase:
    """The generation before with its plan and the machines in the order of its seats, what is expected of machines, and
    new plans that were made before. `minority_since` is when (monotonic) this machine was first in a minority of it."""

    generation: Generation
    plan: Plan
    seated: tuple[Machine, ...] = ()
    outlook: Outlook = field(default_factory=Outlook)
    templates: Templates = field(default_factory=dict)
    minority_since: float = inf


@dataclass(slots=True, kw_only=True)
class GenerationPromise:
    """Where a keeper is: the generation that it last started, and the newest that it has promised itself to."""

    base: GenerationBase
    newest: int = 0


@record
class Report:
    """Where a rank was when it was halted: `step` steps are in its state; it `voted` in the one after these. `vote` is
    the outcome of step number `vote_step`, the last that it knows, None where it knows none."""

    step: int
    voted: bool = False
    vote_step: int = -1
    vote: tuple[float, ...] | None = None


@record
class Settlement:
    """The steps in the state of all survivors once those that are behind have updated by `vote`; -1 for no survivor."""

    step: int
    vote: tuple[float, ...] | None = None


def settle(reports: Sequence[Report]) -> Settlement:
    """Return the step that all survivors reach. Ranks that cannot reach it do not count (`reaches`)."""
    step = max((report.step for report in reports), default=-1)
    known = {report.vote_step: report.vote for report in reports if report.vote is not None}
    pending = [report for report in reports if report.step == step and report.voted and step in known]
    if pending:  # one that knows the outcome was halted before it updated
        return Settlement(step=step + 1, vote=known[step])
    return Settlement(step=step, vote=known.get(step - 1))


def reaches(report: Report, settlement: Settlement) -> bool:
    """Return whether a survivor has, or can compute, the state of the settlement."""
    if report.step == settlement.step:
        return True
    return report.step == settlement.step - 1 and report.voted and settlement.vote is not None


def report_of(data: Mapping[str, Any]) -> Report:
    return Report(**{**data, "vote": data["vote"] and tuple(data["vote"])})
