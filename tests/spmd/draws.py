"""Programs for tests, drawn at random from the table of rules."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from tests.spmd.programs import whole

from shardwright.synthesis.graph import Graph, Partial, Property, Ref, Replicated, Sharded
from shardwright.synthesis.program import Communication, Program, Step, check
from shardwright.synthesis.rules.candidates import Choices


def drawn(graph: Graph, found: Choices, ranks: int, random: Random) -> Program:
    """Return a program in which every node runs by a rule drawn from those that it has, in ratios drawn at random."""
    steps: dict[str, Step] = {}
    made: dict[Ref, Property] = {}
    communications: dict[tuple[Ref, Property], Communication] = {}
    leaves = {*graph.parameters.values(), *graph.buffers.values()}

    def ask(ref: Ref, target: Property) -> None:
        if made[ref] != target and (ref, target) not in communications:
            way = _method(made[ref], target, random) if ranks > 1 else "slice"
            hurry = random.choice(("deferred", "early", ""))
            communications[ref, target] = Communication(
                tensor=ref,
                source=made[ref],
                target=target,
                method=way,
                deferred=hurry == "deferred",
                early=hurry == "early" and ref in leaves,
                kept=hurry == "early" and ref in leaves and len(communications) % 2 == 0,
            )

    for node in graph.nodes:
        rules = found.rules[node.name]
        rule = random.choice(rules[1:] if len(rules) > 1 and random.random() < 0.9 else rules)
        steps[node.name] = Step(rule=rule.name, inputs=rule.inputs, outputs=rule.outputs)
        for ref, asked in zip(node.inputs, rule.inputs, strict=True):
            ask(ref, asked)
        made.update({Ref(node.name, number): held for number, held in enumerate(rule.outputs)})
    for name, ref in graph.gradients.items():
        ask(ref, made[graph.parameters[name]])
    held = [one for step in steps.values() for one in (*step.inputs, *step.outputs) if isinstance(one, Sharded)]
    sizes = {(one.ratio, one.units): shared(one.units, ranks, random) for one in held}
    program = Program(
        ranks=ranks,
        steps=steps,
        communications=tuple(communications.values()),
        shares={},
        sizes=sizes or whole(graph, ranks).sizes,
    )
    check(graph, program)
    return program


def shared(units: int, ranks: int, random: Random) -> tuple[int, ...]:
    """Return `units` shared at random among the ranks; some may get none."""
    cuts = sorted(random.randint(0, units) for _ in range(ranks - 1))
    return tuple(end - start for start, end in pairwise((0, *cuts, units)))


def _method(source: Property, target: Property, random: Random) -> str:
    if isinstance(source, Replicated) or (isinstance(source, Sharded) and isinstance(target, Partial)):
        return "slice"
    if isinstance(source, Partial) and isinstance(target, Replicated):
        return random.choice(("all_reduce", "all_reduce_hierarchical"))
    if isinstance(source, Sharded) and isinstance(target, Sharded):
        return "all_to_all"
    kind = "reduce_scatter" if isinstance(source, Partial) else "all_gather"
    return f"{kind}_{random.choice(('padded', 'grouped'))}"
