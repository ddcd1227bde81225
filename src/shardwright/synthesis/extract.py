"""A choice of rules for the kinds of nodes as a program for every node of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from shardwright.arrays import Ints
from shardwright.rounding import coarse
from shardwright.synthesis.choice import Choice
from shardwright.synthesis.decisions import Decisions
from shardwright.synthesis.graph import REPLICATED, Graph, Node, Property, Ref, Sharded, flops
from shardwright.synthesis.machines import Machines, conversion
from shardwright.synthesis.prices import RankShares
from shardwright.synthesis.program import Communication, Program, Step
from shardwright.synthesis.rules.signature import OperatorRule
from shardwright.synthesis.schedule import call_sizes
from shardwright.synthesis.shorten import ties


def program(graph: Graph, space: Decisions, choice: Choice, net: Machines, shares: RankShares) -> Program:
    """Return the program that a choice stands for, with a step for each node of `graph`."""
    steps = steps_of(graph, space, choice.rules)
    held = [
        held_as for step in steps.values() for held_as in (*step.inputs, *step.outputs) if isinstance(held_as, Sharded)
    ]
    used = dict.fromkeys((held_as.ratio, held_as.units) for held_as in held)
    return Program(
        ranks=net.ranks,
        steps=steps,
        communications=by_fastest(graph, needed(graph, steps, kept=space.kept), net, shares),
        shares={
            name: tuple(coarse(np.asarray(shares.row(name))).tolist())
            for name in dict.fromkeys(ratio for ratio, _ in used)
        },
        sizes={key: shares.sizes[key] for key in used},
        seconds=coarse(choice.seconds.total),
        bound_seconds=coarse(choice.bound_seconds),
    )


def by_fastest(
    graph: Graph, sent: Sequence[Communication], net: Machines, shares: RankShares
) -> tuple[Communication, ...]:
    """Return communications with the fastest method of each, of those that go together of their call."""
    nodes, together = graph.by_name(), call_sizes(graph)
    reader = {ref: node.name for node in reversed(graph.nodes) for ref in node.inputs}

    @cache
    def method(size: float, source: Property, target: Property) -> str:
        return conversion(net, size, source, target, shares.of).method

    def size(message: Communication) -> float:
        whole, node = float(nodes[message.tensor.node].outputs[message.tensor.output].size_bytes), message.tensor.node
        if not (message.early or message.deferred):
            return whole
        asked_by = reader.get(message.tensor, node) if message.early else node
        return together.of(asked_by, whole, message.source, message.target, early=message.early)

    sizes = [size(sending) for sending in sent]
    return tuple(
        replace(sending, method=method(size, sending.source, sending.target))
        for sending, size in zip(sent, sizes, strict=True)
    )


def needed(graph: Graph, steps: Mapping[str, Step], *, kept: bool) -> tuple[Communication, ...]:
    """Return what is sent between `steps`, without a method; with `kept`, parameters are gathered once."""
    made = {Ref(name, number): output for name, step in steps.items() for number, output in enumerate(step.outputs)}
    parameters = {ref.node for ref in graph.parameters.values()}
    leaves = parameters | {ref.node for ref in graph.buffers.values()}
    late = leaves | {""}
    return tuple(
        Communication(
            tensor=ref,
            source=made[ref],
            target=target,
            method="",
            deferred=readers <= late,
            early=ref.node in leaves,
            kept=kept and ref.node in parameters,
        )
        for (ref, target), readers in _asked(graph, steps, made).items()
    )


def steps_of(graph: Graph, space: Decisions, rules: Ints) -> dict[str, Step]:
    chosen = {
        decision.name: decision.rules[rule] for decision, rule in zip(space.decisions, rules.tolist(), strict=True)
    }
    tie = ties(graph)
    steps: dict[str, Step] = {}
    made: dict[Ref, Property] = {}
    shared: dict[tuple[str, str], Step] = {}
    for node in graph.nodes:
        name = tie.get(node.name, node.name)
        rule = chosen.get(name) or _passed(space.views[name], made[node.inputs[0]])
        step = Step(rule=rule.name, inputs=rule.inputs, outputs=rule.outputs)
        step = shared.setdefault((name, rule.name + str(rule.inputs)), step)
        steps[node.name] = step
        made.update((Ref(node.name, number), made_property) for number, made_property in enumerate(step.outputs))
    return steps


def _passed(rules: tuple[OperatorRule, ...], made: Property) -> OperatorRule:
    """Return the rule by which a view passes on the property of what it views."""
    return next((rule for rule in rules if rule.inputs[0] == made), rules[0])


def _asked(
    graph: Graph, steps: Mapping[str, Step], made: Mapping[Ref, Property]
) -> dict[tuple[Ref, Property], set[str]]:
    """Return the conversions that are needed, each with its readers ("" is the end of the step)."""
    readers: dict[tuple[Ref, Property], set[str]] = {}

    def ask(ref: Ref, wanted: Property, reader: str) -> None:
        if made[ref] != wanted:
            readers.setdefault((ref, wanted), set()).add(reader)

    for node in graph.nodes:
        for ref, wanted in zip(node.inputs, steps[node.name].inputs, strict=True):
            ask(ref, wanted, node.name)
    for ends, leaves in ((graph.gradients, graph.parameters), (graph.buffer_updates, graph.buffers)):
        for name, ref in ends.items():
            ask(ref, made[leaves[name]], "")
    ask(graph.loss, REPLICATED, "")
    return readers


def replicated_share(space: Decisions, choice: Choice) -> float:
    """Return the part of all floating-point operations that every rank does in full."""
    work = np.array([decision.weight * flops(decision.node, decision.operands) for decision in space.decisions[:-1]])
    whole = [
        decision.rules[rule].cut is None for decision, rule in zip(space.decisions, choice.rules.tolist(), strict=True)
    ]
    return float(work[np.array(whole[:-1])].sum() / work.sum())


def unknown(space: Decisions) -> list[str]:
    """Return a warning for each operator that has no row in the table and runs replicated."""
    nodes: dict[str, Node] = space.short.graph.by_name()
    ops = dict.fromkeys(nodes[name].op for name in space.unknown)
    return [f"{op} has no rule: it runs replicated on every rank" for op in ops]
