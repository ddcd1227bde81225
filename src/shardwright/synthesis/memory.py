"""Bytes that ranks hold through a step, moment by moment: what fits is judged by this account alone.

All the time a rank holds its parts of parameters, of the optimizer's state, of buffers and of inputs; gradients from
when they are made to the end; a result until its last reader is done; what is sent in buffers until it has arrived.
Views take nothing. So what each action of a program's `schedule` takes and frees is linear in the shares:

    held = whole + Σ over cuts of part · share + padded · ranks · largest share

Where a stretch of the graph stands for several equal ones, each of them adds as much as the one before: the first or
the last of them holds most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.records import record
from shardwright.synthesis.decisions import Decisions, ParameterState
from shardwright.synthesis.extract import by_fastest, needed, steps_of
from shardwright.synthesis.graph import FREE, Graph, Node, Property, Ref, Sharded, Value, words
from shardwright.synthesis.machines import Machines
from shardwright.synthesis.prices import RankShares
from shardwright.synthesis.program import Communication, Program
from shardwright.synthesis.schedule import Action, ComputeNode, Forget, Key, Leave, Send, Wait, schedule

Cut: TypeAlias = tuple[str, int]  # a ratio and a number of units
LEAVES = words("parameter buffer input")
VIEWS = FREE - LEAVES - words("empty_like empty.memory_format")
RANDOM_BYTES = 24.0  # an element, while it is decided what dropout keeps: three 64-bit words
COPIES = 2  # ours and gloo's of a padded buffer, the pieces of an exchange apart and joined
UPDATE = 2.0  # temporaries of the size of a parameter, of the Adams where they take one parameter after the other
SCORE_BYTES = 16.0 + RANDOM_BYTES  # a score of attention with dropout, which no fused kernel computes


@record
class Held:
    """Bytes at each of M moments: `whole` [M] on every rank, `part` [M, cuts] to be shared by a cut, and `padded`
    [M, cuts] in buffers of one largest part for each rank. `node` [M] is the operator that runs, by its place."""

    cuts: tuple[Cut, ...]
    whole: Floats
    part: Floats
    padded: Floats
    node: Ints

    def at(self, share: Floats) -> Floats:
        """Return the bytes [M, ranks] where ranks have shares [cuts, ranks]."""
        largest = share.shape[1] * share.max(axis=1, initial=0.0)
        return np.asarray(self.whole[:, None] + self.part @ share + (self.padded @ largest)[:, None])


def rank_bytes(space: Decisions, rules: Ints, net: Machines, shares: RankShares) -> Floats:
    """Return the most bytes that each rank holds at a time under a choice of rules [ranks]."""
    return np.asarray(_each(held_by(space, rules, net, shares), net, shares).max(axis=0))


def held_by(space: Decisions, rules: Ints, net: Machines, shares: RankShares) -> Held:
    """Return what is held at each moment under a choice of rules."""
    chosen = tuple(rules.tolist())
    sent = by_fastest(space.short.graph, _without_methods(space, chosen).communications, net, shares)
    return _held_by(space, chosen, tuple(message.method for message in sent))


@lru_cache(maxsize=32)
def _without_methods(space: Decisions, rules: tuple[int, ...]) -> Program:
    graph = space.short.graph
    steps = steps_of(graph, space, np.array(rules))
    return Program(ranks=0, steps=steps, communications=needed(graph, steps, kept=space.kept), shares={}, sizes={})


@lru_cache(maxsize=32)
def _held_by(space: Decisions, rules: tuple[int, ...], methods: tuple[str, ...]) -> Held:
    """Shares matter by the methods alone: turns between rules and shares ask for few."""
    program = _without_methods(space, rules)
    sent = tuple(replace(message, method=way) for message, way in zip(program.communications, methods, strict=True))
    return held(space.short.graph, replace(program, communications=sent), space.state, space.short.weight)


def alone(space: Decisions) -> Floats:
    """Return what one device would hold at each moment if it ran all operators [M]."""
    short = space.short
    steps = steps_of(short.graph, space, np.zeros(len(space.decisions), dtype=np.int64))
    program = Program(ranks=1, steps=steps, communications=(), shares={}, sizes={})
    return held(short.graph, program, space.state, short.weight).whole


def class_bytes(held: Held, net: Machines, shares: RankShares) -> Floats:
    """Return the bytes that devices of each class hold at each moment [M, classes]."""
    by_moment = _each(held, net, shares)
    return np.stack([by_moment[:, ranks].max(axis=1) for _, ranks in net.classes], axis=1)


def _each(held: Held, net: Machines, shares: RankShares) -> Floats:
    share = np.array([shares.of(Sharded(0, units, ratio)) for ratio, units in held.cuts]).reshape(-1, net.ranks)
    return held.at(share)


def fits(space: Decisions, rules: Ints, net: Machines, shares: RankShares) -> bool:
    """Return whether a choice of rules fits the memory of all devices."""
    if not np.isfinite(net.limits).any():
        return True
    most = class_bytes(held_by(space, rules, net, shares), net, shares).max(axis=0)
    return bool((most <= net.limits * (1 + 1e-9)).all())


def held(graph: Graph, program: Program, state: ParameterState, weights: Mapping[str, int]) -> Held:
    """Return what is held at each moment of a step. `weights` says how often a node stands for one of its kind, once if
    it is not there."""
    actions = schedule(graph, program)
    leaves = [
        Leaf(
            size=float(node.outputs[0].size_bytes),
            held=program.steps[node.name].outputs[0],
            count=weights.get(node.name, 1),
            parameter=node.op == "parameter",
        )
        for node in graph.nodes
        if node.op in LEAVES
    ]
    cuts, of_state = changes(actions, graph.values(), leaves, state)
    places = _places(graph, actions, len(of_state) // 2)
    runs = np.array([1, *(weights.get(node.name, 1) for node in graph.nodes), 1])[places + 1]
    levels, moments = _levels(of_state, np.repeat(runs, 2))
    return Held(
        cuts=cuts,
        whole=levels[:, 0],
        part=levels[:, 1::2],
        padded=levels[:, 2::2],
        node=np.repeat(places, 2)[moments],
    )


def _places(graph: Graph, actions: Sequence[Action], count: int) -> Ints:
    """Return the place of the operator that each of `count` changes belongs to, -1 before the first, one more than the
    last after it: what is sent belongs to the operator after it, what is forgotten to the one before."""
    order = {node.name: place for place, node in enumerate(graph.nodes)}
    places, waiting, last = [-1], 0, -1
    for action in actions:
        if isinstance(action, Send | Wait):
            waiting += 1
            continue
        if isinstance(action, ComputeNode):
            last = order[action.node.name]
        places += [last] * (waiting + 1)
        waiting = 0
    return np.array(places + [len(order)] * (count - len(places)))


def _levels(bytes_: Floats, runs: Ints) -> tuple[Floats, Ints]:
    """Return what is held at moments and which those are, all of stretches with one run, the first and the last run of
    others."""
    levels, moments, carry, start = [], [], np.zeros(bytes_.shape[1]), 0
    for stop in [*(np.flatnonzero(np.diff(runs)) + 1).tolist(), len(runs)]:
        inside, count = np.cumsum(bytes_[start:stop], axis=0), int(runs[start])
        for before in dict.fromkeys((0, count - 1)):
            levels.append(carry + before * inside[-1] + inside)
            moments.append(np.arange(start, stop))
        carry, start = carry + count * inside[-1], stop
    return np.concatenate(levels), np.concatenate(moments)


@record
class Leaf:
    """What is there before the step: a parameter, a buffer or an input of `size` bytes, `count` of its kind."""

    size: float
    held: Property
    count: int
    parameter: bool


@record(kw_only=False)
class _Buffer:
    """Memory of `size` bytes, whole or shared as `made` says, or of a largest part for each rank."""

    size: float
    made: Property
    padded: bool = False


@dataclass(slots=True)
class _Ledger:
    """Changes of what is held, as columns; column 0 is whole, then part and padded of each cut in turn."""

    cuts: dict[Cut, int] = field(default_factory=dict)
    moments: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)

    def add(self, moment: int, size: float, held: Property, *, padded: bool = False) -> None:
        column = 0
        if isinstance(held, Sharded):
            column = 1 + 2 * self.cuts.setdefault((held.ratio, held.units), len(self.cuts)) + padded
        self.moments.append(moment)
        self.columns.append(column)
        self.sizes.append(size)

    def changes(self, count: int) -> Floats:
        """Return the change at each moment, [count, columns]."""
        changes = np.zeros((count, 1 + 2 * len(self.cuts)))
        np.add.at(changes, (self.moments, self.columns), self.sizes)
        return changes


def changes(
    actions: Sequence[Action],
    values: Mapping[Ref, Value],
    leaves: Sequence[Leaf],
    state: ParameterState,
) -> tuple[tuple[Cut, ...], Floats]:
    """Return cuts, and by how much what is held changes [2 · (1 + actions + updates), 1 + 2 · cuts]: with each action,
    and when it is done. First comes what is there at the start; last are the updates of the optimizer, of which the
    largest of each kind of cut counts. Columns are what is whole, then for each cut what is shared by it and what is
    padded."""
    ledger = _Ledger()
    updated: dict[Property, float] = {}
    for leaf in leaves:
        times = state.bytes + state.sum_bytes if leaf.parameter else 1.0
        ledger.add(0, times * leaf.count * leaf.size, leaf.held)
        if leaf.parameter:
            updated[leaf.held] = max(updated.get(leaf.held, 0.0), leaf.size)
    walk = _Walk(ledger, values, added_up=state.sum_bytes > 0)
    for number, action in enumerate(actions, start=1):
        walk.take(2 * number, action)
    for number, (held, size) in enumerate(updated.items(), start=1 + len(actions)):
        ledger.add(2 * number, UPDATE * size, held)
        ledger.add(2 * number + 1, -UPDATE * size, held)
    return tuple(ledger.cuts), ledger.changes(2 * (1 + len(actions) + len(updated)))


@dataclass(slots=True)
class _Walk:
    """Goes through the actions and writes down what each of them takes and frees."""

    ledger: _Ledger
    values: Mapping[Ref, Value]
    added_up: bool
    storage: dict[Key, _Buffer] = field(default_factory=dict)
    shared: dict[Key, Key] = field(default_factory=dict)
    users: Counter[Key] = field(default_factory=Counter)
    sent: dict[Key, tuple[_Buffer, ...]] = field(default_factory=dict)

    def take(self, moment: int, action: Action) -> None:
        match action:
            case ComputeNode(node, step):
                self._compute(moment, node, step.inputs, step.outputs)
            case Send(several):
                self._send(moment, several)
            case Wait(several):
                self._wait(moment, several)
            case Leave(names, key):
                if not self.added_up and any(name.startswith("gradient ") for name in names):
                    self._keep(moment, key)
            case Forget(keys):
                for key in keys:
                    self._forget(moment, key)

    def _compute(self, moment: int, node: Node, inputs: Sequence[Property], outputs: Sequence[Property]) -> None:
        for number, (value, made) in enumerate(zip(node.outputs, outputs, strict=True)):
            key = (Ref(node.name, number), made)
            if node.op in VIEWS:
                self._alias(key, (node.inputs[0], inputs[0]))
            else:
                self._store(moment, key, 0.0 if node.op in LEAVES else float(value.size_bytes), made)
        working = WORKING.get(node.op)
        if working is not None:
            size, made = working(node, [self.values[ref] for ref in node.inputs]), inputs[0]
            self.ledger.add(moment, size, made)
            self.ledger.add(moment + 1, -size, made)

    def _send(self, moment: int, several: Sequence[Communication]) -> None:
        for message in several:
            size, together = float(self.values[message.tensor].size_bytes), len(several) > 1
            taken = self.sent[message.tensor, message.target] = _buffers(message, size, together=together)
            for buffer in taken:
                self._change(moment, buffer)
            if together:  # what is sent, end to end
                self._change(moment, _Buffer(size, message.source))
                self._change(moment + 1, _Buffer(size, message.source), -1)

    def _wait(self, moment: int, several: Sequence[Communication]) -> None:
        for message in several:
            key = (message.tensor, message.target)
            if _in_place(message):
                self._alias(key, (message.tensor, message.source))
            else:
                arrives = _arrives(message, together=len(several) > 1)
                self._store(moment + arrives, key, float(self.values[message.tensor].size_bytes), message.target)
            for buffer in self.sent.pop(key):
                self._change(moment + 1, buffer, -1)

    def _change(self, moment: int, buffer: _Buffer, sign: int = 1) -> None:
        self.ledger.add(moment, sign * buffer.size, buffer.made, padded=buffer.padded)

    def _store(self, moment: int, key: Key, size: float, made: Property) -> None:
        self.storage[key], self.shared[key], self.users[key] = _Buffer(size, made), key, 1
        self._change(moment, self.storage[key])

    def _alias(self, key: Key, behind: Key) -> None:
        self.shared[key] = self.shared[behind]
        self.users[self.shared[key]] += 1

    def _keep(self, moment: int, key: Key) -> None:
        """Keep what is left to the end; a view is copied, not to keep all that it is a view of."""
        root, (ref, made) = self.shared[key], key
        if root == key:
            self.users[root] += 1
        else:
            self.ledger.add(moment, float(self.values[ref].size_bytes), made)

    def _forget(self, moment: int, key: Key) -> None:
        root = self.shared[key]
        self.users[root] -= 1
        if not self.users[root]:
            self._change(moment + 1, self.storage[root], -1)


def _in_place(message: Communication) -> bool:
    """Return whether a slice of a replicated tensor is a view of it: neighbouring rows are."""
    return message.method == "slice" and isinstance(message.target, Sharded) and _by_rows(message.target)


def _by_rows(held: Property) -> bool:
    return not isinstance(held, Sharded) or (held.dim == 0 and held.outer == 1)


def _arrives(message: Communication, *, together: bool) -> bool:
    """Return whether what is sent arrives in a buffer that was there before."""
    in_place = ("all_gather_grouped", "all_reduce", "all_reduce_hierarchical")
    return message.method == "all_gather_padded" or (
        not together and message.method in in_place and _by_rows(message.source)
    )


def _buffers(message: Communication, size: float, *, together: bool) -> tuple[_Buffer, ...]:
    """Return what a collective takes from when it is sent until it is waited for; see `spmd.fabric`."""
    source, target = message.source, message.target
    # Units along another dimension than the first are brought to the front in a copy; so is what goes together.
    turned = () if together or (_by_rows(source) and _by_rows(target)) else (_Buffer(size, source),)
    match message.method:
        case "all_reduce" | "all_reduce_hierarchical":
            return (_Buffer(size, source),)
        case "all_gather_grouped":
            return (*turned, _Buffer(size, target))
        case "all_gather_padded":
            return (*turned, *[_Buffer(size, source, padded=True)] * COPIES)
        case "reduce_scatter_grouped":
            return (*turned, _Buffer(size, source))
        case "reduce_scatter_padded":
            return (*turned, *[_Buffer(size, target, padded=True)] * COPIES)
        case "all_to_all":
            return (*[_Buffer(size, source)] * COPIES, _Buffer(size, target))
    return ()


def _dropped_scores(node: Node, operands: Sequence[Value]) -> float:
    """Return the bytes of the scores of attention with dropout, nothing where a fused kernel computes it."""
    back = node.op.endswith("backward")
    query, key = operands[back].shape, operands[1 + back].shape
    return SCORE_BYTES * query[0] * query[1] * query[2] * key[2] if node.args[7 if back else 4] else 0.0


# What operators take while they run, shared as their first operand is.
WORKING: dict[str, Callable[[Node, Sequence[Value]], float]] = {
    "cross_entropy": lambda _, operands: float(operands[0].size_bytes),
    "dropout": lambda node, _: RANDOM_BYTES * node.outputs[0].elements,
    "attention": _dropped_scores,
    "attention_backward": _dropped_scores,
}
