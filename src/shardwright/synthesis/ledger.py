"""What each action of a program's `schedule` takes and frees, as bytes that are linear in the shares.

A result is held until its last reader is done, what is sent in buffers until it has arrived; views take nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from shardwright.arrays import Floats
from shardwright.synthesis.decisions import ParameterState
from shardwright.synthesis.graph import Node, Ref, Value, words
from shardwright.synthesis.program import Communication
from shardwright.synthesis.properties import Property, Sharded
from shardwright.synthesis.schedule import Action, ComputeNode, Forget, Key, Leave, Send, Wait
from shardwright.synthesis.work import FREE

Cut: TypeAlias = tuple[str, int]  # a ratio and a number of units
LEAVES = words("parameter buffer input")
VIEWS = FREE - LEAVES - words("empty_like empty.memory_format")
RANDOM_BYTES = 24.0  # an element, while it is decided what dropout keeps: three 64-bit words
COPIES = 2  # ours and gloo's of a padded buffer, the pieces of an exchange apart and joined
UPDATE = 2.0  # temporaries of the size of a parameter, of the Adams where they take one parameter after the other
SCORE_BYTES = 16.0 + RANDOM_BYTES  # a score of attention with dropout, which no fused kernel computes


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """What is there before the step: a parameter, a buffer or an input of `size` bytes, `count` of its kind."""

    size: float
    held: Property
    count: int
    parameter: bool


@dataclass(frozen=True, slots=True)
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
        found = np.zeros((count, 1 + 2 * len(self.cuts)))
        np.add.at(found, (self.moments, self.columns), self.sizes)
        return found


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
        for one in several:
            size, together = float(self.values[one.tensor].size_bytes), len(several) > 1
            taken = self.sent[one.tensor, one.target] = _buffers(one, size, together=together)
            for buffer in taken:
                self._change(moment, buffer)
            if together:  # what is sent, end to end
                self._change(moment, _Buffer(size, one.source))
                self._change(moment + 1, _Buffer(size, one.source), -1)

    def _wait(self, moment: int, several: Sequence[Communication]) -> None:
        for one in several:
            key = (one.tensor, one.target)
            if _in_place(one):
                self._alias(key, (one.tensor, one.source))
            else:
                arrives = _arrives(one, together=len(several) > 1)
                self._store(moment + arrives, key, float(self.values[one.tensor].size_bytes), one.target)
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


def _in_place(one: Communication) -> bool:
    """Return whether a slice of a replicated tensor is a view of it: neighbouring rows are."""
    return one.method == "slice" and isinstance(one.target, Sharded) and _by_rows(one.target)


def _by_rows(held: Property) -> bool:
    return not isinstance(held, Sharded) or (held.dim == 0 and held.outer == 1)


def _arrives(one: Communication, *, together: bool) -> bool:
    """Return whether what is sent arrives in a buffer that was there before."""
    in_place = ("all_gather_grouped", "all_reduce", "all_reduce_hierarchical")
    return one.method == "all_gather_padded" or (not together and one.method in in_place and _by_rows(one.source))


def _buffers(one: Communication, size: float, *, together: bool) -> tuple[_Buffer, ...]:
    """Return what a collective takes from when it is sent until it is waited for; see `spmd.fabric`."""
    source, target = one.source, one.target
    # Units along another dimension than the first are brought to the front in a copy; so is what goes together.
    turned = () if together or (_by_rows(source) and _by_rows(target)) else (_Buffer(size, source),)
    match one.method:
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
    chance = node.args[7 if back else 4]
    return SCORE_BYTES * query[0] * query[1] * query[2] * key[2] if chance else 0.0


WORKING: dict[str, Callable[[Node, Sequence[Value]], float]] = {
    "cross_entropy": lambda _, operands: float(operands[0].size_bytes),
    "dropout": lambda node, _: RANDOM_BYTES * node.outputs[0].elements,
    "attention": _dropped_scores,
    "attention_backward": _dropped_scores,
}
"""What operators take while they run, shared as their first operand is."""
