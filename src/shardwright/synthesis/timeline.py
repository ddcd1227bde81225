"""The time of one step of a program: each device computes, all wait for each other where something is sent that the
next operator needs, and what can wait is sent behind the computation.

Conversions are of three kinds. *Blocking* ones start when the slowest device is there and hold all of them. *Early*
ones (parameters gathered for use) may start with the pass, forward or backward, in the order in which they are needed;
what needs one waits for it. *Deferred* ones (gradients on their way to their parameters) queue for the network, which
serves the others first and is never idle while there is something to send.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add

import numpy as np

from shardwright.arrays import Floats
from shardwright.synthesis.machines import OVERLAP_SLOWDOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """What happens at each node of the step, in order, as columns: seconds of computation [N, D], and of what is sent
    within it or right after it [N]. Early ones belong to the node that needs them. `weights` [N] says how often a
    stretch of nodes of equal weight is run; the backward pass begins with node `loss`."""

    compute: Floats
    blocking: Floats
    deferred: Floats
    early: Floats
    weights: Floats
    loss: int


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
    turn = order.index(events.loss)
    marks = np.flatnonzero((blocking > 0) | (deferred > 0) | (early > 0) | (np.arange(len(order)) == turn))
    parts = (done[marks] - compute[marks], done[marks], blocking[marks], deferred[marks], early[marks])
    waited = [0.0] * compute.shape[1]  # seconds that each class of devices has waited so far
    urgent = 0.0  # when the network will have sent what is early or blocking, had it begun with the pass
    used = 0.0  # when it will have sent all, had it begun with the pass
    busy = 0.0  # when it will have sent what is queued, early ones aside
    for mark, begin, end, hold, later, ahead in zip(marks.tolist(), *(part.tolist() for part in parts), strict=True):
        if mark == turn:
            now = max(map(add, begin, waited))
            urgent, used = max(urgent, now), max(used, busy, now)
        if ahead:
            urgent, used = urgent + ahead, used + ahead
            if urgent > max(map(add, begin, waited)):
                waited = [urgent - one for one in begin]
        if hold or later:
            now = max(map(add, end, waited))
            urgent, used = urgent + hold, used + hold + later
            busy = max(busy, now) + hold + later
            if hold:
                waited = [now + hold - one for one in end]
    busy = max(busy, used)
    last = max(map(add, done[-1].tolist(), waited))
    return StepSeconds(
        total=max(last, busy) + OVERLAP_SLOWDOWN * float(deferred.sum() + early.sum()),
        compute=float(compute.sum(axis=0).max()),
        blocking=float(blocking.sum()),
        exposed=max(0.0, busy - last),
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
