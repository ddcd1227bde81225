"""Bytes that ranks hold through a step, moment by moment: what fits is judged by this account alone.

All the time a rank holds its parts of parameters, of the optimizer's state, of buffers and of inputs; gradients from
when they are made to the end; the rest as `ledger` tells. The bytes are linear in the shares:

    held = whole + Σ over cuts of part · share + padded · ranks · largest share

Where a stretch of the graph stands for several equal ones, each of them adds as much as the one before: the first or
the last of them holds most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.synthesis.decisions import Decisions, ParameterState
from shardwright.synthesis.extract import by_fastest, needed, steps_of
from shardwright.synthesis.graph import Graph, Ref
from shardwright.synthesis.ledger import LEAVES, Cut, Leaf, changes
from shardwright.synthesis.machines import Machines
from shardwright.synthesis.prices import RankShares
from shardwright.synthesis.program import Program
from shardwright.synthesis.properties import Sharded
from shardwright.synthesis.schedule import Action, ComputeNode, Send, Wait, schedule


@dataclass(frozen=True, slots=True, kw_only=True)
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


def rank_bytes(these: Decisions, rules: Ints, net: Machines, shares: RankShares) -> Floats:
    """Return the most bytes that each rank holds at a time under a choice of rules [ranks]."""
    return np.asarray(_each(held_by(these, rules, net, shares), net, shares).max(axis=0))


def held_by(these: Decisions, rules: Ints, net: Machines, shares: RankShares) -> Held:
    """Return what is held at each moment under a choice of rules."""
    chosen = tuple(rules.tolist())
    sent = by_fastest(these.short.graph, _without_methods(these, chosen).communications, net, shares)
    return _held_by(these, chosen, tuple(one.method for one in sent))


@lru_cache(maxsize=32)
def _without_methods(these: Decisions, rules: tuple[int, ...]) -> Program:
    graph = these.short.graph
    steps = steps_of(graph, these, np.array(rules))
    return Program(ranks=0, steps=steps, communications=needed(graph, steps, kept=these.kept), shares={}, sizes={})


@lru_cache(maxsize=32)
def _held_by(these: Decisions, rules: tuple[int, ...], methods: tuple[str, ...]) -> Held:
    """Shares matter by the methods alone: turns between rules and shares ask for few."""
    program = _without_methods(these, rules)
    sent = tuple(replace(one, method=way) for one, way in zip(program.communications, methods, strict=True))
    return held(these.short.graph, replace(program, communications=sent), these.state, these.short.weight)


def alone(these: Decisions) -> Floats:
    """Return what one device would hold at each moment if it ran all operators [M]."""
    short = these.short
    steps = steps_of(short.graph, these, np.zeros(len(these.decisions), dtype=np.int64))
    program = Program(ranks=1, steps=steps, communications=(), shares={}, sizes={})
    return held(short.graph, program, these.state, short.weight).whole


def class_bytes(found: Held, net: Machines, shares: RankShares) -> Floats:
    """Return the bytes that devices of each class hold at each moment [M, classes]."""
    each = _each(found, net, shares)
    return np.stack([each[:, ranks].max(axis=1) for _, ranks in net.classes], axis=1)


def _each(found: Held, net: Machines, shares: RankShares) -> Floats:
    share = np.array([shares.of(Sharded(0, units, ratio)) for ratio, units in found.cuts]).reshape(-1, net.ranks)
    return found.at(share)


def fits(these: Decisions, rules: Ints, net: Machines, shares: RankShares) -> bool:
    """Return whether a choice of rules fits the memory of all devices."""
    if not np.isfinite(net.limits).any():
        return True
    most = class_bytes(held_by(these, rules, net, shares), net, shares).max(axis=0)
    return bool((most <= net.limits * (1 + 1e-9)).all())


def held(graph: Graph, program: Program, state: ParameterState, weights: Mapping[str, int]) -> Held:
    """Return what is held at each moment of a step. `weights` says how often a node stands for one of its kind, once if
    it is not there."""
    actions = schedule(graph, program)
    values = {Ref(node.name, number): value for node in graph.nodes for number, value in enumerate(node.outputs)}
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
    cuts, each = changes(actions, values, leaves, state)
    places = _places(graph, actions, len(each) // 2)
    runs = np.array([1, *(weights.get(node.name, 1) for node in graph.nodes), 1])[places + 1]
    levels, moments = _levels(each, np.repeat(runs, 2))
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
    found, waiting, last = [-1], 0, -1
    for action in actions:
        if isinstance(action, Send | Wait):
            waiting += 1
            continue
        if isinstance(action, ComputeNode):
            last = order[action.node.name]
        found += [last] * (waiting + 1)
        waiting = 0
    return np.array(found + [len(order)] * (count - len(found)))


def _levels(each: Floats, runs: Ints) -> tuple[Floats, Ints]:
    """Return what is held at moments and which those are, all of stretches with one run, the first and the last run of
    others."""
    levels, moments, carry, start = [], [], np.zeros(each.shape[1]), 0
    for stop in [*(np.flatnonzero(np.diff(runs)) + 1).tolist(), len(runs)]:
        inside, count = np.cumsum(each[start:stop], axis=0), int(runs[start])
        for before in dict.fromkeys((0, count - 1)):
            levels.append(carry + before * inside[-1] + inside)
            moments.append(np.arange(start, stop))
        carry, start = carry + count * inside[-1], stop
    return np.concatenate(levels), np.concatenate(moments)
