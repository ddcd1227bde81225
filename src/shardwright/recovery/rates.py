"""How fast bytes move: what transfers and recoveries are predicted by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.recovery.transfer import Bandwidths


@dataclass(frozen=True, slots=True, kw_only=True)
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
