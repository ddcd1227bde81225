"""What a keeper is told on the command line of its machine. Needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shardwright.plans.plan import Plan
from shardwright.recovery.quorum import Machine
from shardwright.recovery.rates import Rates
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.recovery.notices import SIGNAL_SECONDS, Service


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperOptions:
    """`machine` as others reach it; `join` where they may be, its own address first on the one that begins. Snapshots
    are taken every `snapshot_every` steps into `memory`, written to `disk` and to the URL `upload` where these are
    given; claims to go on are made in `etcd`, else in `upload`. A machine silent for `silence_seconds` is lost, and a
    worker that is stopped (`staff.starving`). With fewer machines than any plan needs, the others wait `wait_seconds`
    for more. `notices` say when the machine is taken away; SIGTERM: in `notice_seconds`. What each rank prints is kept
    in `logs` too. Who has not the `secret` of the run is answered nothing."""

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
