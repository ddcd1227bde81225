"""HAP's own method beside the integer program: A* over decisions in the order of execution, without overlap.

A state is what later decisions can still see of the earlier ones: in which property each tensor that will be read is
made, and to which it has been converted already. Of two states that look alike the cheaper stays. The heuristic is the
linear relaxation's: a completion takes at least its bound and the reduced costs of all that has been taken, which never
overestimates. Without it the search is Dijkstra's, which is what HAP's code does.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from shardwright.arrays import Ints
from shardwright.synthesis.best_rules import ProgramBound, relaxed
from shardwright.synthesis.decisions import Decisions, Use
from shardwright.synthesis.graph import Property
from shardwright.synthesis.prices import Prices

Seen: TypeAlias = tuple[Property | None, frozenset[Property]]
"""Of one use: the property in which it is made, if that is decided, and those asked for so far."""
MOST = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The rules [decisions] and seconds of the best choice; `expanded` states were looked at. Not `finished`: the limit
    was reached, and the seconds are those of the state it stopped at."""

    rules: Ints
    seconds: float
    expanded: int
    finished: bool


@dataclass(frozen=True, slots=True)
class _Field:
    space: Decisions
    costs: Prices
    seconds: dict[tuple[int, Property, Property], tuple[float, int]]
    makes: dict[int, list[int]]
    reads: dict[int, list[tuple[int, int]]]
    last: list[int]


def a_star(space: Decisions, costs: Prices, *, heuristic: bool = True, most: int = MOST) -> Found:
    """Return the choice that takes least, every conversion being waited for (`prices` without overlap)."""
    field = _field(space, costs)
    guide = relaxed(space, costs) if heuristic else None
    count = len(space.decisions)
    waiting: list[tuple[float, int, int, float, float, tuple[int, ...], dict[int, Seen]]] = []
    heapq.heappush(waiting, (0.0, 0, 0, 0.0, 0.0, (), {}))
    cheapest: dict[tuple[object, ...], float] = {}
    expanded = pushed = 0
    while waiting:
        _, _, _, spent, extra, rules, seen = heapq.heappop(waiting)
        depth = len(rules)
        if cheapest.get((depth, *_key(seen)), np.inf) < spent * (1 - 1e-12):
            continue
        if depth == count or expanded >= most:
            return Found(rules=np.array(rules), seconds=spent, expanded=expanded, finished=depth == count)
        expanded += 1
        for rule in range(len(space.decisions[depth].rules)):
            step = _taken(field, guide, depth, rule, seen)
            if step is None:
                continue
            cost, more, after = step
            key = (depth + 1, *_key(after))
            if cheapest.get(key, np.inf) <= (spent + cost) * (1 + 1e-12):
                continue
            cheapest[key] = spent + cost
            pushed += 1
            bound = 0.0
            if guide is not None and depth + 1 < count:
                bound = guide.bound_seconds + extra + more + _ahead(field, guide, depth + 1, after)
            estimate = _short(max(spent + cost, bound))
            heapq.heappush(waiting, (estimate, -depth, -pushed, spent + cost, extra + more, (*rules, rule), after))
    return Found(rules=np.zeros(0, dtype=np.int64), seconds=np.inf, expanded=expanded, finished=True)


def _field(space: Decisions, costs: Prices) -> _Field:
    ways = costs.columns
    seconds: dict[tuple[int, Property, Property], tuple[float, int]] = {}
    for one, use in enumerate(ways.use.tolist()):
        found = (float(costs.seconds[one]) * space.uses[use].weight, one)
        key = (use, ways.source[one], ways.target[one])
        seconds[key] = min(seconds.get(key, found), found)
    makes: dict[int, list[int]] = {}
    reads: dict[int, list[tuple[int, int]]] = {}
    last = []
    for number, use in enumerate(space.uses):
        makes.setdefault(use.decision, []).append(number)
        for which, reader in enumerate(use.readers):
            reads.setdefault(reader.decision, []).append((number, which))
        last.append(max(use.decision, *(reader.decision for reader in use.readers)))
    return _Field(space, costs, seconds, makes, reads, last)


def _short(seconds: float) -> float:
    """Return `seconds` to ten digits: of states that differ by last bits alone the deepest goes first."""
    return float(f"{seconds * (1 - 1e-9):.9e}") if seconds else 0.0


def _key(seen: dict[int, Seen]) -> tuple[tuple[int, Seen], ...]:
    return tuple(sorted(seen.items(), key=lambda item: item[0]))


def _taken(
    field: _Field, guide: ProgramBound | None, decision: int, rule: int, seen: dict[int, Seen]
) -> tuple[float, float, dict[int, Seen]] | None:
    """Return what one more rule costs, by how much it raises the bound, and what is seen after it; None if a conversion
    that it needs does not exist."""
    space, costs = field.space, field.costs
    one, row = space.decisions[decision], int(costs.columns.first[decision]) + rule
    cost = one.weight * float(costs.compute[row].max() + costs.sends[row])
    more = 0.0 if guide is None else float(guide.rules[row])
    after = dict(seen)
    touched: dict[int, None] = dict.fromkeys(field.makes.get(decision, ()))
    for number, _ in field.reads.get(decision, ()):
        touched[number] = None
    for number in touched:
        use = space.uses[number]
        made, asked = seen.get(number, (None, frozenset()))
        before = asked if made is not None else frozenset()
        if use.decision == decision:
            made = one.rules[rule].outputs[use.output]
        asked = asked | {reader.asked[rule] for reader in use.readers if reader.decision == decision}
        if made is not None:
            for target in asked - before - {made}:
                way = field.seconds.get((number, made, target))
                if way is None:
                    return None
                cost += way[0]
                more += 0.0 if guide is None else float(guide.sent[way[1]])
            more += 0.0 if guide is None else _edges(guide, number, use, decision, made, rule, asked)
        after[number] = (made, asked)
        if field.last[number] <= decision:
            del after[number]
    return cost, more, after


def _edges(
    guide: ProgramBound, number: int, use: Use, decision: int, made: Property, rule: int, asked: frozenset[Property]
) -> float:
    """Return what the edges that are decided now add to the bound. Where several readers were decided before the
    producer, who asked for what is forgotten, and their edges count for nothing."""
    total = 0.0
    for which, reader in enumerate(use.readers):
        if reader.decision == decision:
            total += guide.edges.get((number, which, made, reader.asked[rule]), 0.0)
        elif use.decision == decision and reader.decision < decision and len(asked) == 1:
            total += guide.edges.get((number, which, made, next(iter(asked))), 0.0)
    return total


def _ahead(field: _Field, guide: ProgramBound, depth: int, seen: dict[int, Seen]) -> float:
    """Return by how much the decisions next to those taken must raise the bound: for each, the least over its rules of
    what the rule, its edges to what is decided and conversions that it alone asks for add."""
    space, costs = field.space, field.costs
    touched: dict[int, list[tuple[int, int, Seen]]] = {}
    for number, state in seen.items():
        use = space.uses[number]
        if state[0] is not None:
            for which, reader in enumerate(use.readers):
                if reader.decision >= depth:
                    touched.setdefault(reader.decision, []).append((number, which, state))
        elif len(state[1]) == 1:
            early = [which for which, reader in enumerate(use.readers) if reader.decision < depth]
            touched.setdefault(use.decision, []).append((number, early[0], state))
    total = 0.0
    for decision, edges in touched.items():
        start = int(costs.columns.first[decision])
        total += min(
            float(guide.rules[start + rule]) + sum(_raised(field, guide, decision, rule, *edge) for edge in edges)
            for rule in range(len(space.decisions[decision].rules))
        )
    return total


def _raised(
    field: _Field, guide: ProgramBound, decision: int, rule: int, number: int, which: int, state: Seen
) -> float:
    """Return what one edge adds to the bound if `decision` takes `rule`."""
    use, (made, asked) = field.space.uses[number], state
    if made is None:
        made, target = field.space.decisions[decision].rules[rule].outputs[use.output], next(iter(asked))
    else:
        target = use.readers[which].asked[rule]
    added = guide.edges.get((number, which, made, target), np.inf)
    if made != target and len(use.readers) == 1 and (way := field.seconds.get((number, made, target))) is not None:
        added += float(guide.sent[way[1]])
    return added
