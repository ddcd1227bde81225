"""Moments of a rank's work: of the process on a CPU, of the device's own queue on a GPU, which it runs ahead of."""

from __future__ import annotations

import time
from typing import Any

import torch

Moment = Any
"""Seconds of `time.perf_counter`, or a CUDA event."""


def moment(device: torch.device) -> Moment:
    """Return the moment at which the device has done what it was given so far."""
    if device.type != "cuda":
        return time.perf_counter()
    make: Any = torch.cuda.Event
    event = make(enable_timing=True)
    event.record()
    return event


def seconds_between(begin: Moment, end: Moment) -> float:
    """Return the seconds from one moment to another; both must be over."""
    if isinstance(begin, float):
        return float(end - begin)
    return float(begin.elapsed_time(end)) / 1e3
