"""When machines came to a run and were lost: what its outlook is made of. No PyTorch."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from shardwright.recovery.outlook import FleetChange, Outlook, outlook_of


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The changes of a run since it first trained; machines that join before are no arrivals."""

    changes: list[FleetChange] = field(default_factory=list)

    def begins(self, there: int) -> None:
        """Note that the run trains on so many machines, if it is for the first time."""
        if not self.changes:
            self.changes.append(FleetChange(seconds=time.monotonic(), machines=there, lost=0, came=there))

    def changed(self, there: int, *, lost: int = 0, came: int = 0) -> None:
        """Note machines that were lost or came, after which so many are there."""
        if self.changes:
            self.changes.append(FleetChange(seconds=time.monotonic(), machines=there, lost=lost, came=came))

    def outlook(self, wanted: int) -> Outlook:
        """Return what is expected now of a run that wants so many machines."""
        return outlook_of(self.changes, wanted, time.monotonic())
