"""The best program at fixed shares, as an integer program over the decisions of one block.

Columns: x[i, r] is 1 if decision i takes rule r; y[c] if conversion c is made; e[t, k, p, q] if tensor t is made in
property p and reader k asks for q; T is the time of the step, in units of a bound. Rows:

1. every decision takes one rule;                                                         -> `_rules`
2. Σ_q e[t, k, p, q] = Σ x of the rules that make t in p; Σ_p e = Σ x of k's that ask q;    -> `_operands`
3. e[t, k, p, q] ≤ Σ y of the conversions from p to q that are done in time for k, or kept; -> `_operands`
4. T ≥ computation + what is waited for, on each class of devices;                         -> `_times`
5. T ≥ computation before node k + what is waited for + what is deferred from k on;        -> `_times`
6. T ≥ computation before a pass + what is gathered early in it for nodes up to j + computation from j to k + what is
   waited for + what is deferred from k on, and T ≥ computation before a pass + all that is sent from then on, for
   other j and k where a solution breaks it;                                              -> `broken`
7. state and gradients, which are all there at the end, fit the memory of each device;      -> `_memory`
8. what a device holds at node k fits, for other k where a solution breaks it.             -> `memory_row`

Rows 4 to 6 are the time of `timeline` if one class of devices is the slowest at every rule; otherwise they bound it
from below, and the gap to the true time of the program found is its certificate. Row 8 counts each tensor as its last
reader asks for it; what `memory` counts beside is taken from the limit as the solution that broke it had it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple, TypeAlias

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.records import record
from shardwright.rows import grouped
from shardwright.synthesis.decisions import BLOCKING, DEFERRED, EARLY, DecisionColumns, Decisions
from shardwright.synthesis.graph import Property, Sharded
from shardwright.synthesis.linear import LinearRows
from shardwright.synthesis.machines import OVERLAP_SLOWDOWN
from shardwright.synthesis.prices import Prices, slower

Edge: TypeAlias = tuple[int, int, Property, Property]  # use, reader of it, made, asked
TIME_ROWS = 8  # of kind 5 at the start
STRETCHES = 4  # of the step, of each of which a row of kind 6 may be added at a time


class TimeRow(NamedTuple):
    """What a row of kind 6 counts of a class of devices: computation before node `first`, early from it up to node
    `early`, computation of nodes `start` to `stop`, and what is deferred from node `stop - 1` on."""

    first: int
    early: int
    start: int
    stop: int
    device: int


@record
class IntegerProgram:
    """Rows and costs, and what rows of time are made of: for columns x and y, by node of the short graph, how often
    they occur before it [N + 1, columns]. `once` [N] marks the nodes that occur once: inside a stretch that stands for
    several occurrences there is no time before which each of its nodes has run as often as it ever does."""

    rows: LinearRows
    costs: Floats
    compute: Floats
    waited: Floats
    behind: Floats
    ahead: Floats
    before: Floats
    sent_before: Floats
    edges: dict[Edge, int]
    unit: float
    once: Bools
    passes: tuple[int, int]

    def row(self, coefficients: Floats) -> Floats:
        """Return the coefficients of T ≥ Σ coefficient · (x, y)."""
        return np.concatenate([-coefficients / self.unit, np.zeros(len(self.edges)), [1.0]])


def spans(costs: Prices) -> list[tuple[int, int]]:
    """Return where the rules of each decision start and stop."""
    first = costs.columns.first
    return list(zip(first.tolist(), [*first[1:].tolist(), len(costs.columns.decision)], strict=True))


def integer_program(space: Decisions, costs: Prices) -> IntegerProgram:
    """Return rows 1 to 5 and 7."""
    named = costs.columns
    rules = _rules(space, named)
    rows, edges = rules.rows.copied(), rules.edges
    weight = np.array([decision.weight for decision in space.decisions])[named.decision]
    sends = np.array([use.weight for use in space.uses])[named.use]
    waited = np.concatenate([weight * costs.sends, np.where(named.kind == BLOCKING, sends * costs.seconds, 0.0)])
    unit = float(np.minimum.reduceat(weight * costs.compute.max(axis=1), named.first).sum()) or 1.0
    behind = np.where(named.kind == DEFERRED, costs.seconds, 0.0)
    ahead = np.where(named.kind == EARLY, costs.seconds, 0.0)
    slowed = OVERLAP_SLOWDOWN * (behind + ahead) * sends
    program = IntegerProgram(
        rows=rows, costs=np.concatenate([np.zeros(len(weight)), slowed / unit, np.zeros(len(edges)), [1.0]]),
        compute=costs.compute[:, slower(costs.compute)], waited=waited, behind=behind, ahead=ahead,
        before=rules.before, sent_before=rules.sent_before, edges=edges, unit=unit, once=np.array(space.weights) == 1,
        passes=(0, space.loss),
    )  # fmt: skip
    _times(program)
    _memory(rows, costs, len(program.costs))
    return program


@record(kw_only=False)
class _Rules:
    """What does not hang on shares: rows 1 to 3, the columns e, and what is how often before each node."""

    rows: LinearRows
    edges: dict[Edge, int]
    before: Floats
    sent_before: Floats


@lru_cache(maxsize=8)
def _rules(space: Decisions, named: DecisionColumns) -> _Rules:
    rows = LinearRows()
    for start, stop in pairwise((*named.first.tolist(), len(named.decision))):
        rows.add(dict.fromkeys(range(start, stop), 1.0), 1.0, 1.0)
    return _Rules(rows, _operands(rows, space, named), *_occurrences(space, named))


def _operands(rows: LinearRows, space: Decisions, named: DecisionColumns) -> dict[Edge, int]:
    """Add rows 2 and 3 for every reader of every use; return the columns e."""
    count = len(named.decision)
    by_use = grouped((number, one) for one, number in enumerate(named.use.tolist()))
    edges: dict[Edge, int] = {}
    column, kept = count + len(named.use), space.kept_from()
    for number, use in enumerate(space.uses):
        made = _by_property([rule.outputs[use.output] for rule in space.decisions[use.decision].rules])
        start = int(named.first[use.decision])
        of_use = by_use.get(number, []) + by_use.get(kept.get(number, -1), [])
        mine = grouped(((named.source[one], named.target[one]), one) for one in of_use)
        for which, reader in enumerate(use.readers):
            asked = _by_property(list(reader.asked))
            begin = int(named.first[reader.decision])
            from_made: dict[object, dict[int, float]] = {one: {} for one in made}
            to_asked: dict[object, dict[int, float]] = {one: {} for one in asked}
            for source in made:
                for target in asked:
                    some = [] if source == target else _ready(mine.get((source, target), []), named.kind, reader.at_end)
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
    return grouped((held, place) for place, held in enumerate(properties))


def _ready(some: list[int], kind: Ints, at_end: bool) -> list[int]:
    """Return the conversions that are done when a reader needs them."""
    return [row for row in some if at_end or kind[row] != DEFERRED]


def _occurrences(space: Decisions, named: DecisionColumns) -> tuple[Floats, Floats]:
    """Return how often each rule [N + 1, R], and each conversion [N + 1, C], has occurred before each node."""
    count = len(space.order)
    per_node = np.zeros((count + 1, len(space.decisions)))
    for place, (decision, weight) in enumerate(zip(space.order, space.weights, strict=True)):
        if decision >= 0:
            per_node[place + 1, decision] += weight
    by_use = np.zeros((count + 1, len(space.uses)))
    for number, use in enumerate(space.uses):
        for place, first in zip(use.places, use.first, strict=True):
            at = min(first, count - 1) if use.early else place
            by_use[at + 1, number] += space.weights[place]
    return np.cumsum(per_node, axis=0)[:, named.decision], np.cumsum(by_use, axis=0)[:, named.use]


def time_row(program: IntegerProgram, row: TimeRow) -> Floats:
    """Return the coefficients of T ≥ what `row` counts and all that is waited for."""
    first, early, start, stop, device = row
    compute = program.compute[:, device] * (program.before[stop] - program.before[start] + program.before[first])
    ahead = program.ahead * (program.sent_before[early] - program.sent_before[first])
    behind = program.behind * (program.sent_before[-1] - program.sent_before[max(stop - 1, 0)])
    return program.row(np.concatenate([compute, ahead + behind]) + program.waited)


def _times(program: IntegerProgram) -> None:
    """Add row 4, and row 5 for the first node and some others."""
    last = len(program.before) - 1
    deferred = np.flatnonzero((np.diff(program.sent_before @ (program.behind > 0)) > 0) & program.once)
    places = np.unique(np.concatenate([[0], deferred[:: -max(1, len(deferred) // TIME_ROWS)]]))
    for kind in range(program.compute.shape[1]):
        compute = program.compute[:, kind] * program.before[last]
        program.rows.add_dense(program.row(np.concatenate([compute, 0 * program.behind]) + program.waited), low=0.0)
        for place in places.tolist():
            program.rows.add_dense(time_row(program, TimeRow(0, 0, 0, place + 1, kind)), low=0.0)


def broken(program: IntegerProgram, x: Floats, gap: float) -> list[TimeRow]:
    """Return the rows 6 that the columns `x` break by more than `gap`: for each class and pass that of all that is
    sent, and the worst in each stretch of the step."""
    count = len(program.compute)
    y = x[count : count + len(program.behind)]
    waited, time = float(program.waited @ x[: len(program.waited)]), float(x[-1]) * program.unit
    ahead = program.sent_before @ (program.ahead * y)
    behind = program.sent_before @ (program.behind * y)
    worst: list[tuple[float, TimeRow]] = []
    computed = [program.before @ (seconds * x[:count]) for seconds in program.compute.T]
    for (kind, done), first in product(enumerate(computed), program.passes):
        sent = done[first] + ahead[-1] - ahead[first] + behind[-1] - behind[first]
        worst.append((float(sent), TimeRow(first, len(behind) - 1, first + 1, first + 1, kind)))
        # T(j, k) = done[first] + ahead[j] - ahead[first] - done[j-1] + done[k] + behind[-1] - behind[k-1], j ≤ k
        begins = np.where(program.once, done[first] - ahead[first] + ahead[1:] - done[:-1], -np.inf)[first:]
        ends = np.where(program.once, done[1:] + behind[-1] - behind[:-1], -np.inf)[first:]
        total = np.maximum.accumulate(begins) + ends
        for places in np.array_split(np.arange(len(total)), STRETCHES):
            stop = int(places[np.argmax(total[places])]) if len(places) else 0
            start = first + int(np.argmax(begins[: stop + 1]))
            worst.append((float(total[stop]), TimeRow(first, start + 1, start, first + stop + 1, kind)))
    return [row for seconds, row in worst if waited + seconds > time * (1 + gap)]


def _memory(rows: LinearRows, costs: Prices, width: int) -> None:
    for kind, limit in enumerate(costs.net.limits):
        if np.isfinite(limit):
            row = np.concatenate([costs.state[:, kind], np.zeros(width - len(costs.state))])
            rows.add_dense(row / limit, high=1.0)


def memory_row(space: Decisions, costs: Prices, edges: Mapping[Edge, int], width: int, node: int) -> Floats:
    """Return the bytes that columns make a device of each class hold while a node of the short graph runs [width, D]:
    state, gradients made by then, and what will still be read, in the property that its last reader asks for."""
    row = np.zeros((width, len(costs.net.classes)))
    made = _gradients_made(space, node)
    state = space.state
    there = state.bytes + np.where(state.sum_bytes > 0, state.sum_bytes, made)
    still = np.asarray(there / (state.bytes + state.gradient_bytes))
    row[: len(costs.state)] = costs.state * still[costs.columns.decision, None]
    copies = [
        sum(
            space.weights[place]
            for place, first, last in zip(use.places, use.first, use.last, strict=True)
            if (first if use.early else place) <= node <= last < len(space.order)
        )
        for use in space.uses
    ]
    for (number, which, _, asked), column in edges.items():
        use = space.uses[number]
        if copies[number] and which == use.ending:
            share = costs.shares.by_class(asked, costs.net) if isinstance(asked, Sharded) else 1.0
            row[column] = (1 if use.early else copies[number]) * use.value.size_bytes * share
    return row


def _gradients_made(space: Decisions, node: int) -> Floats:
    """Return the part of the occurrences of each decision whose gradient has been made by a node [decisions]."""
    graph = space.short.graph
    place = {leaf_node.name: number for number, leaf_node in enumerate(graph.nodes)}
    made = np.zeros(len(space.decisions))
    for name, ref in graph.gradients.items():
        leaf = place[graph.parameters[name].node]
        if place[ref.node] <= node:
            made[space.order[leaf]] += space.weights[leaf] / space.decisions[space.order[leaf]].weight
    return made
