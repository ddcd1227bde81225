"""What a search at fixed shares comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.synthesis.columns import BLOCKING, DEFERRED, EARLY
from shardwright.synthesis.decisions import Decisions
from shardwright.synthesis.integer_program import IntegerProgram, TimeRow, spans
from shardwright.synthesis.prices import Prices
from shardwright.synthesis.timeline import Events, StepSeconds, step_seconds


@dataclass(frozen=True, slots=True)
class Hint:
    """What a search leaves to the next at other shares: the rows of time that mattered, and the basis it ended with."""

    rows: tuple[TimeRow, ...]
    basis: Any


@dataclass(frozen=True, slots=True, kw_only=True)
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


def chosen(these: Decisions, costs: Prices, values: Floats, bound: float) -> Choice:
    """Return the choice that whole columns make."""
    x = values[: len(costs.compute)]
    rules = np.array([int(np.argmax(x[start:stop])) for start, stop in spans(costs)])
    sent = sent_by(these, costs, rules)
    seconds = time_of(these, costs, rules, sent)
    return Choice(rules=rules, sent=sent, seconds=seconds, bound_seconds=min(bound, seconds.total))


def columns_of(these: Decisions, costs: Prices, program: IntegerProgram, choice: Choice) -> Floats:
    """Return the columns that a choice stands for."""
    values = np.zeros(len(program.costs))
    count = len(costs.compute)
    values[costs.columns.first + choice.rules] = 1.0
    values[count : count + len(choice.sent)] = choice.sent
    for (number, which, made, asked), column in program.edges.items():
        use = these.uses[number]
        reader = use.readers[which]
        values[column] = (
            these.decisions[use.decision].rules[choice.rules[use.decision]].outputs[use.output] == made
            and reader.asked[choice.rules[reader.decision]] == asked
        )
    slowed = float(program.costs[:-1] @ values[:-1])
    values[-1] = choice.seconds.total / program.unit - slowed
    return values


def sent_by(these: Decisions, costs: Prices, rules: Ints) -> Floats:
    """Return which conversions [C] a choice of rules needs: of one that is asked for in time and later again, the first
    serves both, as does what is kept for the backward."""
    ways = costs.columns
    needed: dict[tuple[int, Any, Any], int] = {}
    for number, use in enumerate(these.uses):
        made = these.decisions[use.decision].rules[int(rules[use.decision])].outputs[use.output]
        for reader in use.readers:
            asked = reader.asked[int(rules[reader.decision])]
            if asked != made:
                kind = EARLY if use.early else DEFERRED if reader.at_end else BLOCKING
                key = (number, made, asked)
                needed[key] = min(needed.get(key, kind), kind)
    kept = these.kept_from()
    needed = {key: kind for key, kind in needed.items() if (kept.get(key[0]), *key[1:]) not in needed}
    found: dict[tuple[int, Any, Any], tuple[bool, float, int]] = {}
    for one, key in enumerate(zip(ways.use.tolist(), ways.source, ways.target, strict=True)):
        if key in needed:
            way = (int(ways.kind[one]) != needed[key], float(costs.seconds[one]), one)
            found[key] = min(found.get(key, way), way)
    sent = np.zeros(len(costs.seconds))
    sent[[one for _, _, one in found.values()]] = 1.0
    return sent


def time_of(these: Decisions, costs: Prices, rules: Ints, sent: Floats) -> StepSeconds:
    """Return the time of the step that a choice makes."""
    return step_seconds(events(these, costs, rules, sent))


def events(these: Decisions, costs: Prices, rules: Ints, sent: Floats) -> Events:
    """Return what happens at each node of the short graph under a choice."""
    count = len(these.order)
    row = costs.columns.first + rules
    picked = np.array(these.order)
    there = picked >= 0
    compute = np.zeros((count, costs.compute.shape[1]))
    compute[there] = costs.compute[row[picked[there]]]
    blocking, deferred, early = np.zeros(count), np.zeros(count), np.zeros(count)
    blocking[there] = costs.sends[row[picked[there]]]
    ways = costs.columns
    for one in np.flatnonzero(sent > 0.5):
        use, kind, seconds = these.uses[ways.use[one]], ways.kind[one], costs.seconds[one]
        places = np.minimum(use.first, count - 1) if kind == EARLY else use.places
        np.add.at({BLOCKING: blocking, DEFERRED: deferred, EARLY: early}[int(kind)], np.array(places), seconds)
    return Events(
        compute=compute, blocking=blocking, deferred=deferred, early=early,
        weights=np.array(these.weights, dtype=np.float64), loss=these.loss,
    )  # fmt: skip
