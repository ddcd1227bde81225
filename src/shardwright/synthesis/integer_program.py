"""The best program at fixed shares, as an integer program over the decisions of one block.

Columns: x[i, r] is 1 if decision i takes rule r; y[c] if conversion c is made; e[t, k, p, q] if tensor t is made in
property p and reader k asks for q; T is the time of the step, in units of a bound. Rows:

1. every decision takes one rule;                                                         -> `_one_rule`
2. Σ_q e[t, k, p, q] = Σ x of the rules that make t in p; Σ_p e = Σ x of k's that ask q;    -> `_operands`
3. e[t, k, p, q] ≤ Σ y of the conversions from p to q that are done in time for k;          -> `_operands`
4. T ≥ computation + what is waited for, on each class of devices;                         -> `_times`
5. T ≥ computation before node k + what is waited for + what is deferred from k on;        -> `_times`
6. T ≥ what is gathered early for nodes up to j + computation from j to k + what is waited for + what is deferred
   from k on, for other j and k where a solution breaks it;                               -> `_broken`
7. what a device holds fits its memory.                                                    -> `_memory`

Rows 4 to 6 are the time of `timeline` if one class of devices is the slowest at every rule; otherwise they bound it
from below, and the gap to the true time of the program found is its certificate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from shardwright.cost.strategies import Bools, Floats, Ints
from shardwright.synthesis.decisions import Decisions
from shardwright.synthesis.linear import Rows, Solution, solve
from shardwright.synthesis.machines import OVERLAP_SLOWDOWN
from shardwright.synthesis.prices import BLOCKING, DEFERRED, EARLY, Prices, slower
from shardwright.synthesis.properties import Property
from shardwright.synthesis.timeline import Events, StepSeconds, step_seconds

Edge: TypeAlias = tuple[int, int, Property, Property]  # use, reader of it, made, asked
ROUNDS = 12  # of adding rows that a solution breaks
TIME_ROWS = 8  # of kind 5 at the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A rule for each decision [decisions], the conversions made [C], the time of the step, and a lower bound of the
    time of any choice at these shares. `nodes` of the branch and bound were visited."""

    rules: Ints
    sent: Floats
    seconds: StepSeconds
    bound_seconds: float
    nodes: int = 0


def best(these: Decisions, costs: Prices, *, gap: float = 1e-3, allowed: Bools | None = None) -> Choice | None:
    """Return the best choice among `allowed` rules [R], None if none fits the memory."""
    program = _program(these, costs)
    width = len(program.costs)
    lower, upper = np.zeros(width), np.ones(width)
    upper[-1] = np.inf
    if allowed is not None:
        upper[: len(allowed)] = allowed
    integer = np.zeros(width, dtype=bool)
    integer[: len(costs.decision)] = True
    found: Choice | None = None
    bound, nodes = 0.0, 0
    start: Floats | None = None
    for _ in range(ROUNDS):  # most rows that matter are broken by the relaxation already
        solution = solve(program.costs, program.rows, lower=lower, upper=upper)
        if solution.status == "infeasible" or not _broken(program, solution, gap):
            break
    for _ in range(ROUNDS):
        solution = solve(program.costs, program.rows, lower=lower, upper=upper, integer=integer, gap=gap, start=start)
        if solution.status == "infeasible" or not len(solution.values):
            return found
        bound, nodes = max(bound, solution.bound * program.unit), nodes + solution.nodes
        choice = chosen(these, costs, solution, bound, nodes)
        if found is None or choice.seconds.total < found.seconds.total:
            found = choice
            slowed = float(program.costs[:-1] @ solution.values[:-1])
            start = np.append(solution.values[:-1], found.seconds.total / program.unit - slowed)
        if not _broken(program, solution, gap / 2):
            break
    if found is None:
        return None
    return Choice(
        rules=found.rules, sent=found.sent, seconds=found.seconds, bound_seconds=min(bound, found.seconds.total),
        nodes=nodes,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """The linear relaxation: a lower bound of the time, and by how much each column adds to it if it is taken."""

    bound_seconds: float
    rules: Floats
    sent: Floats
    edges: dict[Edge, float]


def relaxed(these: Decisions, costs: Prices) -> Relaxed:
    """Return the linear relaxation (rows 1 to 5 and 7). A choice takes at least the bound and the reduced costs of all
    that it takes."""
    program = _program(these, costs)
    width, count, sent = len(program.costs), len(costs.decision), len(costs.conversions)
    solution = solve(program.costs, program.rows, lower=np.zeros(width), upper=np.full(width, np.inf))
    extra = np.maximum(solution.reduced_costs, 0.0) * program.unit
    return Relaxed(
        bound_seconds=solution.bound * program.unit,
        rules=extra[:count],
        sent=extra[count : count + sent],
        edges={edge: float(extra[column]) for edge, column in program.edges.items()},
    )


def chosen(these: Decisions, costs: Prices, solution: Solution, bound: float = 0.0, nodes: int = 0) -> Choice:
    """Return the choice that a solution of the integer program makes."""
    count = len(costs.decision)
    x = solution.values[:count]
    rules = np.array([int(np.argmax(x[start:stop])) for start, stop in _spans(costs)])
    sent = np.round(solution.values[count : count + len(costs.conversions)])
    return Choice(rules=rules, sent=sent, seconds=time_of(these, costs, rules, sent), bound_seconds=bound, nodes=nodes)


def time_of(these: Decisions, costs: Prices, rules: Ints, sent: Floats) -> StepSeconds:
    """Return the time of the step that a choice makes."""
    return step_seconds(events(these, costs, rules, sent))


def events(these: Decisions, costs: Prices, rules: Ints, sent: Floats) -> Events:
    """Return what happens at each node of the short graph under a choice."""
    count = len(these.order)
    row = costs.first + rules
    picked = np.array(these.order)
    there = picked >= 0
    compute = np.zeros((count, costs.compute.shape[1]))
    compute[there] = costs.compute[row[picked[there]]]
    blocking, deferred, early = np.zeros(count), np.zeros(count), np.zeros(count)
    blocking[there] = costs.sends[row[picked[there]]]
    ways = costs.conversions
    for one in np.flatnonzero(sent > 0.5):
        use, kind, seconds = these.uses[ways.use[one]], ways.kind[one], ways.seconds[one]
        places = np.minimum(use.first, count - 1) if kind == EARLY else use.places
        np.add.at({BLOCKING: blocking, DEFERRED: deferred, EARLY: early}[int(kind)], np.array(places), seconds)
    return Events(
        compute=compute, blocking=blocking, deferred=deferred, early=early,
        weights=np.array(these.weights, dtype=np.float64),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """Rows and costs, and what rows of time are made of: for columns x and y, by node of the short graph, how often
    they occur before it [N + 1, columns]. `once` [N] marks the nodes that occur once: inside a stretch that stands for
    several occurrences there is no time before which each of its nodes has run as often as it ever does."""

    rows: Rows
    costs: Floats
    compute: Floats
    waited: Floats
    behind: Floats
    ahead: Floats
    before: Ints
    sent_before: Ints
    edges: dict[Edge, int]
    unit: float
    once: Bools

    def row(self, coefficients: Floats) -> Floats:
        """Return the coefficients of T ≥ Σ coefficient · (x, y)."""
        return np.concatenate([-coefficients / self.unit, np.zeros(len(self.edges)), [1.0]])


def _spans(costs: Prices) -> list[tuple[int, int]]:
    ends = [*costs.first[1:].tolist(), len(costs.decision)]
    return list(zip(costs.first.tolist(), ends, strict=True))


def _program(these: Decisions, costs: Prices) -> _Program:
    rows = Rows()
    ways, count = costs.conversions, len(costs.decision)
    _one_rule(rows, costs)
    edges = _operands(rows, these, costs)
    weight = np.array([one.weight for one in these.decisions])[costs.decision]
    sends = np.array([these.uses[use].weight for use in ways.use])
    seconds = ways.seconds
    waited = np.concatenate([weight * costs.sends, np.where(ways.kind == BLOCKING, sends * seconds, 0.0)])
    kept = slower(costs.compute)
    unit = _unit(costs, weight)
    behind, ahead = np.where(ways.kind == DEFERRED, seconds, 0.0), np.where(ways.kind == EARLY, seconds, 0.0)
    slowed = OVERLAP_SLOWDOWN * (behind + ahead) * sends
    objective = np.concatenate([np.zeros(count), slowed / unit, np.zeros(len(edges)), [1.0]])
    before, sent_before = _occurrences(these, costs)
    program = _Program(
        rows=rows, costs=objective, compute=costs.compute[:, kept], waited=waited, behind=behind, ahead=ahead,
        before=before, sent_before=sent_before, edges=edges, unit=unit,
        once=np.array(these.weights) == 1,
    )  # fmt: skip
    _times(program)
    _memory(rows, costs, len(objective))
    return program


def _one_rule(rows: Rows, costs: Prices) -> None:
    for start, stop in _spans(costs):
        rows.add(dict.fromkeys(range(start, stop), 1.0), 1.0, 1.0)


def _operands(rows: Rows, these: Decisions, costs: Prices) -> dict[Edge, int]:
    """Add rows 2 and 3 for every reader of every use; return the columns e."""
    ways, count = costs.conversions, len(costs.decision)
    by_use: dict[int, list[int]] = {}
    for one, number in enumerate(ways.use.tolist()):
        by_use.setdefault(number, []).append(one)
    edges: dict[Edge, int] = {}
    column = count + len(ways)
    for number, use in enumerate(these.uses):
        made = _by_property([rule.outputs[use.output] for rule in these.decisions[use.decision].rules])
        start = int(costs.first[use.decision])
        mine: dict[tuple[object, object], list[int]] = {}
        for one in by_use.get(number, []):
            mine.setdefault((ways.source[one], ways.target[one]), []).append(one)
        for which, reader in enumerate(use.readers):
            asked = _by_property(list(reader.asked))
            begin = int(costs.first[reader.decision])
            from_made: dict[object, dict[int, float]] = {one: {} for one in made}
            to_asked: dict[object, dict[int, float]] = {one: {} for one in asked}
            for source in made:
                for target in asked:
                    some = [] if source == target else _ready(mine.get((source, target), []), ways.kind, reader.side)
                    if source != target and not some:
                        continue
                    edges[number, which, source, target] = column
                    from_made[source][column] = to_asked[target][column] = 1.0
                    if some:
                        rows.add({column: 1.0, **{count + one: -1.0 for one in some}}, high=0.0)
                    column += 1
            for source, places in made.items():
                rows.add({**from_made[source], **{start + place: -1.0 for place in places}}, 0.0, 0.0)
            for target, places in asked.items():
                terms = dict(to_asked[target])
                for place in places:
                    terms[begin + place] = terms.get(begin + place, 0.0) - 1.0
                rows.add(terms, 0.0, 0.0)
    return edges


def _by_property(properties: list[Property]) -> dict[Property, list[int]]:
    found: dict[Property, list[int]] = {}
    for place, one in enumerate(properties):
        found.setdefault(one, []).append(place)
    return found


def _ready(some: list[int], kind: Ints, side: bool) -> list[int]:
    """Return the conversions that are done when a reader needs them."""
    return [one for one in some if side or kind[one] != DEFERRED]


def _occurrences(these: Decisions, costs: Prices) -> tuple[Ints, Ints]:
    """Return how often each rule [N + 1, R], and each conversion [N + 1, C], has occurred before each node."""
    count, ways = len(these.order), costs.conversions
    per_node = np.zeros((count + 1, len(these.decisions)), dtype=np.int64)
    for place, (decision, weight) in enumerate(zip(these.order, these.weights, strict=True)):
        if decision >= 0:
            per_node[place + 1, decision] += weight
    by_use = np.zeros((count + 1, len(these.uses)), dtype=np.int64)
    for number, use in enumerate(these.uses):
        early = use.early
        for place, first in zip(use.places, use.first, strict=True):
            at = min(first, count - 1) if early else place
            by_use[at + 1, number] += these.weights[place]
    return np.cumsum(per_node, axis=0)[:, costs.decision], np.cumsum(by_use, axis=0)[:, ways.use]


def _unit(costs: Prices, weight: Ints) -> float:
    """Return a time of the size of a step: the least computation of every decision."""
    per_rule = weight * costs.compute.max(axis=1)
    return float(sum(per_rule[start:stop].min() for start, stop in _spans(costs))) or 1.0


def _row(program: _Program, early: int, start: int, stop: int, one: int) -> Floats:
    """Return the coefficients of T ≥ early up to node `early`, computation of nodes `start` to `stop`, all that is
    waited for, and what is deferred from node `stop - 1` on."""
    compute = program.compute[:, one] * (program.before[stop] - program.before[start])
    ahead = program.ahead * program.sent_before[early]
    behind = program.behind * (program.sent_before[-1] - program.sent_before[max(stop - 1, 0)])
    return program.row(np.concatenate([compute, ahead + behind]) + program.waited)


def _times(program: _Program) -> None:
    """Add row 4, and row 5 for the first node (all that is sent) and some others."""
    last = len(program.before) - 1
    deferred = np.flatnonzero((np.diff(program.sent_before @ (program.behind > 0)) > 0) & program.once)
    places = np.unique(np.concatenate([[0], deferred[:: -max(1, len(deferred) // TIME_ROWS)]]))
    for one in range(program.compute.shape[1]):
        compute = program.compute[:, one] * program.before[last]
        program.rows.add_dense(program.row(np.concatenate([compute, 0 * program.behind]) + program.waited), low=0.0)
        for place in places.tolist():
            program.rows.add_dense(_row(program, 0, 0, place + 1, one), low=0.0)


def _broken(program: _Program, solution: Solution, gap: float) -> bool:
    """Add the row 6 that a solution breaks most, for each class; return whether there was one."""
    x = solution.values
    count = len(program.compute)
    y = x[count : count + len(program.behind)]
    waited, time = float(program.waited @ x[: len(program.waited)]), float(x[-1]) * program.unit
    ahead = program.sent_before @ (program.ahead * y)
    behind = program.sent_before @ (program.behind * y)
    broken = False
    for one in range(program.compute.shape[1]):
        done = program.before @ (program.compute[:, one] * x[:count])
        # T(j, k) = ahead[j] - done[j-1] + done[k] + behind[-1] - behind[k-1], j ≤ k
        gains = np.where(program.once, ahead[1:] - done[:-1], -np.inf)
        ends = np.where(program.once, done[1:] + behind[-1] - behind[:-1], -np.inf)
        top = np.maximum.accumulate(gains)
        stop = int(np.argmax(top + ends))
        if waited + top[stop] + ends[stop] > time * (1 + gap):
            start = int(np.argmax(gains[: stop + 1]))
            program.rows.add_dense(_row(program, start + 1, start, stop + 1, one), low=0.0)
            broken = True
    return broken


def _memory(rows: Rows, costs: Prices, width: int) -> None:
    for one, limit in enumerate(costs.limits):
        if np.isfinite(limit):
            row = np.concatenate([costs.memory[:, one], np.zeros(width - len(costs.decision))])
            rows.add_dense(row / limit, high=1.0)
