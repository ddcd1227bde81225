"""The time of one step of a program: each device computes, all wait for each other where something is sent that the
next operator needs, and what can wait is sent behind the computation.

Conversions are of three kinds. *Blocking* ones start when the slowest device is there and hold all of them. *Deferred*
ones (gradients on their way to their parameters) queue for the network, which serves blocking ones first. *Early* ones
(parameters gathered for use) may start with the step, in the order in which they are needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Floats
from shardwright.synthesis.machines import OVERLAP_SLOWDOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """What happens at each node of the step, in order, as columns: seconds of computation [N, D], and of what is sent
    within it or right after it [N]. Early ones belong to the node that needs them. `weights` [N] says how often a
    stretch of nodes of equal weight is run."""

    compute: Floats
    blocking: Floats
    deferred: Floats
    early: Floats
    weights: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """Seconds of a step: in all, of computation on the slowest device, of what is sent and waited for, and of what
    could not be hidden at the end."""

    total: float
    compute: float
    blocking: float
    exposed: float
    deferred: float


def step_seconds(events: Events) -> StepSeconds:
    """Return the time of a step."""
    order = _unrolled(events.weights)
    compute, blocking = events.compute[order], events.blocking[order]
    early, deferred = events.early[order], events.deferred[order]
    done = np.cumsum(compute, axis=0)
    marks = np.flatnonzero((blocking > 0) | (deferred > 0) | (early > 0))
    parts = (done[marks] - compute[marks], compute[marks], blocking[marks], deferred[marks], early[marks])
    clock = before = np.zeros(compute.shape[1])
    busy = 0.0  # when the network will have sent what waits
    used = 0.0  # seconds that it has worked
    for so_far, work, hold, later, ahead in zip(*parts, strict=True):
        clock = clock + (so_far - before)
        if ahead:
            now = clock.max()
            lacking = max(0.0, ahead - max(0.0, now - used))
            clock = np.full_like(clock, now + lacking) if lacking else clock
            used += ahead
            busy = max(busy, now + lacking)
        clock, before = clock + work, so_far + work
        if hold or later:
            now = clock.max()
            used += hold + later
            busy = max(busy, now) + hold + later
            clock = np.full_like(clock, now + hold) if hold else clock
    end = float((clock + (done[-1] - before)).max())
    return StepSeconds(
        total=max(end, float(busy)) + OVERLAP_SLOWDOWN * float(deferred.sum() + early.sum()),
        compute=float(compute.sum(axis=0).max()),
        blocking=float(blocking.sum()),
        exposed=max(0.0, float(busy) - end),
        deferred=float(deferred.sum()),
    )


def _unrolled(weights: Floats) -> list[int]:
    """Return the nodes in order, stretches with a weight above 1 as often as it says."""
    order: list[int] = []
    start = 0
    marks = [*np.flatnonzero(np.diff(weights)) + 1, len(weights)]
    for stop in marks:
        order += list(range(start, stop)) * int(weights[start])
        start = int(stop)
    return order
