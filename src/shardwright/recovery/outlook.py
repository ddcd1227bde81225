"""What a run expects: how often machines are lost and come, from what it has seen so far, and how fast bytes move.

Losses are taken to be a Poisson process of n machines. Of its rate nothing is known at first but what planning assumes
for a spot machine, so that has the weight of one loss (a Gamma prior):

    losses per machine-hour = (losses + 1) / (machine-hours + 1 / assumed)

A batch of machines lost at once counts as one loss: recovery pays once for it. Machines come at a rate of their own
while some are missing, where `PATIENCE_HOURS` more without any are assumed:

    arrivals per hour = arrivals / (hours with missing machines + PATIENCE_HOURS)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from shardwright.records import record
from shardwright.recovery.transfer import Bandwidths
from shardwright.spec.offers import SPOT_PREEMPTIONS_PER_HOUR
from shardwright.units import SECONDS_PER_HOUR

HORIZON_SECONDS = 3600.0  # how far ahead a decision looks
PATIENCE_HOURS = 0.25


@record
class FleetChange:
    """At `seconds`, `lost` machines were lost and `came` came, after which there were `machines`."""

    seconds: float
    machines: int
    lost: int
    came: int


@record
class Outlook:
    """What is expected: losses of a machine an hour, machines that come an hour where some are missing, and for how
    long a decision shall be a good one."""

    losses_per_machine_hour: float = SPOT_PREEMPTIONS_PER_HOUR
    arrivals_per_hour: float = 0.0
    horizon_seconds: float = HORIZON_SECONDS

    def arrival_seconds(self, missing: int) -> float:
        """Return the expected seconds until so many machines have come; infinite where none ever came."""
        return missing * SECONDS_PER_HOUR / self.arrivals_per_hour if self.arrivals_per_hour else inf


def outlook_of(changes: Sequence[FleetChange], wanted: int, now_seconds: float) -> Outlook:
    """Return the outlook of a run that wants so many machines after its changes so far, in order of time. The first
    change is the beginning; before it nothing is known."""
    if not changes:
        return Outlook()
    machine_hours = missing_hours = 0.0
    ends = [change.seconds for change in changes[1:]] + [now_seconds]
    for change, end in zip(changes, ends, strict=True):
        hours = (end - change.seconds) / SECONDS_PER_HOUR
        machine_hours += change.machines * hours
        missing_hours += hours * (change.machines < wanted)
    losses = sum(change.lost > 0 for change in changes)
    return Outlook(
        losses_per_machine_hour=(losses + 1.0) / (machine_hours + 1.0 / SPOT_PREEMPTIONS_PER_HOUR),
        arrivals_per_hour=sum(change.came for change in changes[1:]) / (missing_hours + PATIENCE_HOURS),
    )


@record
class Rates:
    """Bytes per second of a machine's parts: its link in either direction, its memory, its disk, and the way from the
    object store."""

    link: float = 1.25e9
    memory: float = 8e9
    disk: float = 1.5e9
    cloud: float = 2.5e8


def bandwidths_of(machines: int, rates: Rates) -> Bandwidths:
    """Return the rates of so many machines, which are taken to be alike."""
    return Bandwidths(
        up=np.full(machines, rates.link),
        down=np.full(machines, rates.link),
        memory=np.full(machines, rates.memory),
        disk=np.full(machines, rates.disk),
        cloud=np.full(machines, rates.cloud),
    )
