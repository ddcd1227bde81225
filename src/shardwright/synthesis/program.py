"""A program: how each operator of a graph is sharded, and what is sent between operators.

Every rank runs the nodes of the graph in their order on its parts of the tensors. Before a node reads a tensor in
another property than that in which it was made, the tensor is converted, once for each property asked for. The ratios
and integer sizes are those that the program was priced with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from itertools import groupby
from typing import Any

from shardwright.errors import SpecError, bad
from shardwright.records import record
from shardwright.synthesis.graph import Graph, Property, Ref, Sizes, property_document, property_of_document

PROGRAM_VERSION = 1
METHODS = {
    "slice": "each rank takes its part of what it has; nothing is sent",
    "keep_first": "the first rank keeps what it has, all others take zeros: a term of a sum; nothing is sent",
    "all_gather_padded": "one all-gather, every part padded to the largest",
    "all_gather_grouped": "a broadcast from each rank, in one group",
    "reduce_scatter_padded": "one reduce-scatter, every part padded to the largest",
    "reduce_scatter_grouped": "a reduce to each rank, in one group",
    "all_reduce": "one flat all-reduce",
    "all_reduce_hierarchical": "reduce-scatter in each machine, all-reduce between them, all-gather in each",
    "all_to_all": "each rank sends each other the part that it is to hold",
}


@record
class Step:
    """How one node runs: `rule` names the row of the table of rules, `inputs` are the properties of `node.inputs` in
    that order, `outputs` those of its results."""

    rule: str
    inputs: tuple[Property, ...] = ()
    outputs: tuple[Property, ...] = ()


@record
class Communication:
    """A conversion of `tensor` from the property in which it is made to another. `deferred`: nothing in the step
    computes with it; `early`: it may start as soon as the pass does, and is made for the forward and again for the
    backward unless it is `kept`."""

    tensor: Ref
    source: Property
    target: Property
    method: str
    deferred: bool = False
    early: bool = False
    kept: bool = False


@record
class Program:
    """What each of `ranks` ranks does. `steps` has every node of the graph by name; `shares` the exact ratios by name,
    `sizes` the units of each rank by ratio and number of units. A gradient ends in the property of its parameter, the
    loss replicated."""

    ranks: int
    steps: Mapping[str, Step]
    communications: tuple[Communication, ...]
    shares: Mapping[str, tuple[float, ...]]
    sizes: Sizes
    seconds: float = 0.0
    bound_seconds: float = 0.0
    notes: Mapping[str, Any] = field(default_factory=dict)

    def conversions(self) -> dict[tuple[Ref, Property], Communication]:
        """Return the communications by tensor and property that they lead to."""
        return {(message.tensor, message.target): message for message in self.communications}


def to_json(program: Program) -> str:
    return json.dumps(
        {
            "version": PROGRAM_VERSION,
            "ranks": program.ranks,
            "shares": {name: list(part) for name, part in program.shares.items()},
            "sizes": [[ratio, units, list(part)] for (ratio, units), part in program.sizes.items()],
            "steps": {
                name: [
                    step.rule,
                    [property_document(held) for held in step.inputs],
                    [property_document(held) for held in step.outputs],
                ]
                for name, step in program.steps.items()
            },
            "communications": [_communication_document(message) for message in program.communications],
            "seconds": program.seconds,
            "bound_seconds": program.bound_seconds,
            "notes": dict(program.notes),
        },
        separators=(",", ":"),
    )


def from_json(text: str, source: str = "program") -> Program:
    """Return the program that `to_json` wrote. Raises `SpecError` if it is none; `source` names it in the message."""
    try:
        part = json.loads(text)
        if part["version"] != PROGRAM_VERSION:
            raise bad(source, f"version {part['version']} of programs is not known", f"known: {PROGRAM_VERSION}")
        return Program(
            ranks=part["ranks"],
            shares={name: tuple(row) for name, row in part["shares"].items()},
            sizes={(ratio, units): tuple(row) for ratio, units, row in part["sizes"]},
            steps={
                name: Step(
                    rule=rule,
                    inputs=tuple(property_of_document(held) for held in inputs),
                    outputs=tuple(property_of_document(held) for held in outputs),
                )
                for name, (rule, inputs, outputs) in part["steps"].items()
            },
            communications=tuple(_communication(row) for row in part["communications"]),
            seconds=part["seconds"],
            bound_seconds=part["bound_seconds"],
            notes=part["notes"],
        )
    except SpecError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise bad(source, f"is no SPMD program: {error!r}") from error


def _communication_document(message: Communication) -> list[Any]:
    return [
        message.tensor.node,
        message.tensor.output,
        property_document(message.source),
        property_document(message.target),
        message.method,
        message.deferred,
        message.early,
        message.kept,
    ]


def _communication(row: list[Any]) -> Communication:
    node, output, source, target, method, deferred, early, *kept = row
    return Communication(
        tensor=Ref(node, output),
        source=property_of_document(source),
        target=property_of_document(target),
        method=method,
        deferred=deferred,
        early=early,
        kept=any(kept),
    )


def check(graph: Graph, program: Program, source: str = "program") -> None:
    """Raise `SpecError` unless every node has a step whose inputs are at hand in the properties that it asks for, every
    gradient ends as its parameter is stored, and the sizes of each ratio add up."""
    for (ratio, units), row in program.sizes.items():
        if len(row) != program.ranks or sum(row) != units or min(row) < 0:
            raise bad(source, f"sizes {row} of {ratio!r} do not share {units} units among {program.ranks} ranks")
    made: dict[Ref, Property] = {}
    there = set(program.conversions())
    leaves = {*graph.parameters.values(), *graph.buffers.values()}
    for node in graph.nodes:
        step = program.steps.get(node.name)
        if step is None or len(step.inputs) != len(node.inputs) or len(step.outputs) != len(node.outputs):
            raise bad(source, f"has no step that fits {node.name}")
        for ref, asked in zip(node.inputs, step.inputs, strict=True):
            if made[ref] != asked and (ref, asked) not in there:
                raise bad(source, f"{node.name} reads {ref.node} {asked}, but it is {made[ref]}")
        made.update((Ref(node.name, number), held) for number, held in enumerate(step.outputs))
    for message in program.communications:
        if made.get(message.tensor) != message.source or message.method not in METHODS:
            raise bad(source, f"cannot send {message.tensor.node} from {message.source} by {message.method}")
        if message.early and message.tensor not in leaves:
            raise bad(source, f"sends {message.tensor.node} early, which is no parameter or buffer")
    ends = [(ref, made[graph.parameters[name]], name) for name, ref in graph.gradients.items()]
    for ref, asked, name in ends:
        if made[ref] != asked and (ref, asked) not in there:
            raise bad(source, f"the gradient of {name} is {made[ref]}, its parameter {asked}")


def text(graph: Graph, program: Program, *, every: bool = False) -> str:
    """Return the program as lines that a person can read: a line an operator, with the communications before it. Of
    repeated blocks only the first is shown, unless `every`."""
    hidden = {} if every else _hidden(graph)
    lines = [f"{program.ranks} ranks, {program.seconds * 1e3:.4g} ms a step"]
    lines += [f"share {name}: {_shares(row)}" for name, row in program.shares.items()]
    lines += [f"units {ratio}/{units}: {_sizes(row)}" for (ratio, units), row in sorted(program.sizes.items())]
    made: dict[Ref, Property] = {}
    waiting = program.conversions()
    for node in graph.nodes:
        step = program.steps[node.name]
        made.update((Ref(node.name, number), held) for number, held in enumerate(step.outputs))
        sent = [
            f"    {message.method} {ref.node}{f'.{ref.output}' if ref.output else ''}: "
            f"{message.source} → {message.target}"
            f"{', kept for the backward' if message.kept else ''}"
            for ref, asked in dict.fromkeys(zip(node.inputs, step.inputs, strict=True))
            if made[ref] != asked and (message := waiting.pop((ref, asked), None)) is not None
        ]
        if node.name in hidden:
            if hidden[node.name]:
                lines.append(f"  … {hidden[node.name]}")
            continue
        lines += sent
        results = ", ".join(str(held) for held in step.outputs)
        read = ", ".join(ref.node for ref in node.inputs)
        lines.append(f"  {node.name} = {node.op}({read}): {step.rule} → {results}")
    lines += [
        f"    {message.method} {ref.node}: {message.source} → {message.target}"
        for (ref, _), message in waiting.items()
        if ref.node not in hidden
    ]
    return "\n".join(lines) + "\n"


def _hidden(graph: Graph) -> dict[str, str]:
    """Return the nodes of all but the first occurrence of each repeated block, and at the first of the second
    occurrence a line that says what was left out."""
    hidden: dict[str, str] = {}
    for repeat in graph.repeats:
        for number, block in enumerate(repeat.occurrences[1:]):
            hidden.update(dict.fromkeys(block, ""))
            if not number and block:
                hidden[block[0]] = f"{repeat.count - 1} more blocks like this one, forward and backward"
    return hidden


def _shares(row: tuple[float, ...]) -> str:
    return _runs([f"{share:.4f}" for share in row])


def _sizes(row: tuple[int, ...]) -> str:
    return _runs([str(size) for size in row])


def _runs(words: list[str]) -> str:
    """Return the words with neighbours that are alike counted: "3×a b"."""
    runs = [(word, len(list(group))) for word, group in groupby(words)]
    return " ".join(f"{count}×{word}" if count > 1 else word for word, count in runs)
