"""What a choice of rules at fixed shares comes to: what it sends and when, and the seconds of its step.

Each device computes, all wait for each other where something is sent that the next operator needs, and what can wait is
sent behind the computation. So conversions are of three kinds. *Blocking* ones start when the slowest device is there
and hold all of them. *Early* ones (parameters gathered for use) may start with the pass, forward or backward, in the
order in which they are needed; what needs one waits for it. *Deferred* ones (gradients on their way to their
parameters) queue for the network, which serves the others first and is never idle while there is something to send.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.records import record
from shardwright.synthesis.decisions import BLOCKING, DEFERRED, EARLY, Decisions
from shardwright.synthesis.integer_program import IntegerProgram, TimeRow, spans
from shardwright.synthesis.machines import OVERLAP_SLOWDOWN
from shardwright.synthesis.prices import Prices


@record(kw_only=False)
class Hint:
    """What a search leaves to the next at other shares: the rows of time that mattered, and the basis it ended with."""

    rows: tuple[TimeRow, ...]
    basis: Any


@record
class Choice:
    """A rule for each decision [decisions], the conversions made [C], the time of the step, and a lower bound of the
    time of any choice at these shares. `nodes` of the branch and bound were visited."""

    rules: Ints
    sent: Floats
    seconds: StepSeconds
    bound_seconds: float
    nodes: int = 0
    hint: Hint | None = field(default=None, compare=False, repr=False)

    @property
    def gap(self) -> float:
        """By how much the time exceeds the bound, as a part of the time."""
        return 1.0 - self.bound_seconds / self.seconds.total if self.seconds.total else 0.0


def chosen(space: Decisions, costs: Prices, values: Floats, bound: float) -> Choice:
    x = values[: len(costs.compute)]
    rules = np.array([int(np.argmax(x[start:stop])) for start, stop in spans(costs)])
    sent = sent_by(space, costs, rules)
    seconds = time_of(space, costs, rules, sent)
    return Choice(rules=rules, sent=sent, seconds=seconds, bound_seconds=min(bound, seconds.total))


def columns_of(space: Decisions, costs: Prices, program: IntegerProgram, choice: Choice) -> Floats:
    values = np.zeros(len(program.costs))
    count = len(costs.compute)
    values[costs.columns.first + choice.rules] = 1.0
    values[count : count + len(choice.sent)] = choice.sent
    for (number, which, made, asked), column in program.edges.items():
        use = space.uses[number]
        reader = use.readers[which]
        values[column] = (
            space.decisions[use.decision].rules[choice.rules[use.decision]].outputs[use.output] == made
            and reader.asked[choice.rules[reader.decision]] == asked
        )
    slowed = float(program.costs[:-1] @ values[:-1])
    values[-1] = choice.seconds.total / program.unit - slowed
    return values


def sent_by(space: Decisions, costs: Prices, rules: Ints) -> Floats:
    """Return which conversions [C] a choice of rules needs: of one that is asked for in time and later again, the first
    serves both, as does what is kept for the backward."""
    ways = costs.columns
    needed: dict[tuple[int, Any, Any], int] = {}
    for number, use in enumerate(space.uses):
        made = space.decisions[use.decision].rules[int(rules[use.decision])].outputs[use.output]
        for reader in use.readers:
            asked = reader.asked[int(rules[reader.decision])]
            if asked != made:
                kind = EARLY if use.early else DEFERRED if reader.at_end else BLOCKING
                key = (number, made, asked)
                needed[key] = min(needed.get(key, kind), kind)
    kept = space.kept_from()
    needed = {key: kind for key, kind in needed.items() if (kept.get(key[0]), *key[1:]) not in needed}
    cheapest: dict[tuple[int, Any, Any], tuple[bool, float, int]] = {}
    for place, key in enumerate(zip(ways.use.tolist(), ways.source, ways.target, strict=True)):
        if key in needed:
            way = (int(ways.kind[place]) != needed[key], float(costs.seconds[place]), place)
            cheapest[key] = min(cheapest.get(key, way), way)
    sent = np.zeros(len(costs.seconds))
    sent[[place for _, _, place in cheapest.values()]] = 1.0
    return sent


def time_of(space: Decisions, costs: Prices, rules: Ints, sent: Floats) -> StepSeconds:
    return step_seconds(events(space, costs, rules, sent))


def events(space: Decisions, costs: Prices, rules: Ints, sent: Floats) -> Events:
    """Return what happens at each node of the short graph under a choice."""
    count = len(space.order)
    row = costs.columns.first + rules
    picked = np.array(space.order)
    there = picked >= 0
    compute = np.zeros((count, costs.compute.shape[1]))
    compute[there] = costs.compute[row[picked[there]]]
    blocking, deferred, early = np.zeros(count), np.zeros(count), np.zeros(count)
    blocking[there] = costs.sends[row[picked[there]]]
    ways = costs.columns
    for way in np.flatnonzero(sent > 0.5):
        use, kind, seconds = space.uses[ways.use[way]], ways.kind[way], costs.seconds[way]
        places = np.minimum(use.first, count - 1) if kind == EARLY else use.places
        np.add.at({BLOCKING: blocking, DEFERRED: deferred, EARLY: early}[int(kind)], np.array(places), seconds)
    return Events(
        compute=compute, blocking=blocking, deferred=deferred, early=early,
        weights=np.array(space.weights, dtype=np.float64), loss=space.loss,
    )  # fmt: skip


@record
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


@record
class StepSeconds:
    """Seconds of a step: in all, of computation on the slowest device, of what is sent and waited for, and of what
    could not be hidden at the end."""

    total: float
    compute: float
    blocking: float
    exposed: float
    deferred: float


@record
class _Pass:
    """When a pass ends: seconds that each class has waited [D], when the network has sent what is early or blocking and
    when all (`urgent`, `used`), had it begun with the pass, and when what is queued (`busy`), early ones aside."""

    waited: Floats
    urgent: float
    used: float
    busy: float


def step_seconds(events: Events) -> StepSeconds:
    order = _unrolled(events.weights)
    compute, blocking = events.compute[order], events.blocking[order]
    early, deferred = events.early[order], events.deferred[order]
    done = np.cumsum(compute, axis=0)
    marks = np.flatnonzero((blocking > 0) | (deferred > 0) | (early > 0))
    turn = order.index(events.loss)
    parts = (done[marks] - compute[marks], done[marks], blocking[marks], deferred[marks], early[marks])
    middle = int(np.searchsorted(marks, turn))
    start = _Pass(waited=np.zeros(compute.shape[1]), urgent=0.0, used=0.0, busy=0.0)
    forward = _after(start, *(part[:middle] for part in parts))
    now = float((done[turn] - compute[turn] + forward.waited).max())
    begun = replace(forward, urgent=max(forward.urgent, now), used=max(forward.used, forward.busy, now))
    backward = _after(begun, *(part[middle:] for part in parts))
    last, sent = float((done[-1] + backward.waited).max()), max(backward.busy, backward.used)
    return StepSeconds(
        total=max(last, sent) + OVERLAP_SLOWDOWN * float(deferred.sum() + early.sum()),
        compute=float(compute.sum(axis=0).max()),
        blocking=float(blocking.sum()),
        exposed=max(0.0, sent - last),
        deferred=float(deferred.sum()),
    )


def _after(before: _Pass, begin: Floats, end: Floats, hold: Floats, later: Floats, ahead: Floats) -> _Pass:
    """Return when a pass ends whose nodes begin and end [M, D] so if nothing is waited for, and send so much that is
    blocking, deferred and early [M].

    What a class has waited is the most that any wait so far makes it: until an early one has been sent, and after the
    blocking one h until τ(h), when that has been sent, which the slowest class starts and the one before it delays:

        τ(h) = hold(h) + max(τ(h - 1) + max over classes of end(h) - end(h - 1), max over classes of end(h) + waited)
    """
    if not len(end):
        return before
    urgent = before.urgent + np.cumsum(ahead) + np.cumsum(hold) - hold
    waits = np.where(ahead[:, None] > 0, urgent[:, None] - begin, -np.inf)
    waited = np.maximum(before.waited, np.maximum.accumulate(waits, axis=0))
    final = waited[-1]
    held = np.flatnonzero(hold)
    if len(held):
        steps = hold[held] + np.append(0.0, (end[held[1:]] - end[held[:-1]]).max(axis=1))
        along = np.cumsum(steps)
        reached = (end[held] + waited[held]).max(axis=1) + hold[held]
        waits = (along + np.maximum.accumulate(reached - along))[:, None] - end[held]
        final = np.maximum(final, waits[-1])
        last = np.searchsorted(held, np.arange(len(end))) - 1  # the blocking one before each node
        waited = np.maximum(waited, np.where(last[:, None] >= 0, waits[last], -np.inf))
    queued = hold + later
    behind = np.cumsum(queued[::-1])[::-1]
    now = (end + waited).max(axis=1)
    return _Pass(
        waited=final,
        urgent=float(urgent[-1] + hold[-1]),
        used=before.used + float(behind[0] + ahead.sum()),
        busy=max(before.busy + float(behind[0]), float((now + behind)[queued > 0].max(initial=0.0))),
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
