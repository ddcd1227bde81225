"""The order in which a rank computes, sends and forgets: the same list of actions on every rank.

A tensor is sent just before the operator that reads it in its new property. What the program marks as early
(parameters gathered for use) is sent one call ahead, so that it travels while the operators before compute, and sent
again for the backward, so that no rank holds all parameters; what it marks as deferred (a gradient) is sent as soon as
all that goes in its call is made, and waited for when the next call has been sent. A tensor is forgotten after its last
use; what the step leaves (a gradient) is handed over before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shardwright.synthesis.buckets import calls
from shardwright.synthesis.graph import Graph, Node, Ref
from shardwright.synthesis.program import Communication, Program, Step
from shardwright.synthesis.properties import REPLICATED, Partial, Property, Replicated

IN_FLIGHT = 1  # calls beside the one just sent: what gradients are made of takes memory until they arrive
Key: TypeAlias = tuple[Ref, Property]
"""A tensor in one property."""


@dataclass(frozen=True, slots=True)
class ComputeNode:
    node: Node
    step: Step


@dataclass(frozen=True, slots=True)
class Send:
    """Several are sent in one call."""

    several: tuple[Communication, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    several: tuple[Communication, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """What the step leaves under `names` is done, and nothing in the step reads it any more."""

    names: tuple[str, ...]
    key: Key


@dataclass(frozen=True, slots=True)
class Forget:
    keys: tuple[Key, ...]


Action: TypeAlias = ComputeNode | Send | Wait | Leave | Forget


def schedule(graph: Graph, program: Program) -> tuple[Action, ...]:
    """Return the actions of every rank."""
    actions = _ordered(graph, program)
    left: dict[Key, list[str]] = defaultdict(list)
    for name, key in ends(graph, program).items():
        left[key].append(name)
    gone: dict[int, list[Key]] = defaultdict(list)
    later: set[Key] = set()
    for index, action in reversed(list(enumerate(actions))):
        for key in dict.fromkeys(_used(action)):
            if key not in later:
                later.add(key)
                gone[index].append(key)
        if isinstance(action, Wait):  # what comes before belongs to an earlier copy
            later -= {(one.tensor, one.target) for one in action.several} - left.keys()
    return tuple(_forgetting(actions, gone, left))


def ends(graph: Graph, program: Program) -> dict[str, Key]:
    """Return the tensors that a step leaves: "loss", "gradient NAME" and "buffer NAME", in the property that the loss,
    the parameter or the buffer has."""

    def held(ref: Ref) -> Property:
        return program.steps[ref.node].outputs[ref.output]

    return {
        "loss": (graph.loss, REPLICATED),
        **{f"gradient {name}": (ref, held(graph.parameters[name])) for name, ref in graph.gradients.items()},
        **{f"buffer {name}": (ref, held(graph.buffers[name])) for name, ref in graph.buffer_updates.items()},
    }


def _ordered(graph: Graph, program: Program) -> list[Action]:
    """Return the actions without the forgetting."""
    closing = _closing(graph, program)
    known = {**closing, **program.conversions()}
    read = _first_readers(graph, program, known)
    waits = _starting(graph, read, early=True)
    there = {one for ones in read.values() for one in ones}
    late: dict[str, list[Communication]] = defaultdict(list)
    for one in [known[key] for key in closing if known[key] not in there]:
        late[one.tensor.node if one.deferred else graph.nodes[-1].name].append(one)
    starting = _starting(graph, late, early=False)
    leaves = {ref.node for ref in (*graph.parameters.values(), *graph.buffers.values())}
    nodes = sorted(graph.nodes, key=lambda node: node.name not in leaves)  # which are there when the step starts
    sends = _sends(graph, nodes[len(leaves) :], waits)
    actions: list[Action] = []
    travelling: list[tuple[Communication, ...]] = []
    for node in nodes:
        actions += [Send(several) for several in sends[node.name]]
        actions += [Wait(several) for several in waits[node.name]]
        actions.append(ComputeNode(node, program.steps[node.name]))
        for several in starting[node.name]:
            actions.append(Send(several))
            travelling.append(several)
            if len(travelling) > IN_FLIGHT:
                actions.append(Wait(travelling.pop(0)))
    return [*actions, *(Wait(several) for several in travelling)]


def _starting(
    graph: Graph, ready: Mapping[str, Sequence[Communication]], *, early: bool
) -> dict[str, list[tuple[Communication, ...]]]:
    """Return the calls for what nodes ask for, by the first that does (`early`), or have ready, by the last."""
    found: dict[str, list[tuple[Communication, ...]]] = defaultdict(list)
    for call in calls(graph, ready, early=early):
        found[call[0 if early else -1][0]].append(tuple(one for _, one in call))
    return found


def _closing(graph: Graph, program: Program) -> dict[Key, Communication]:
    """Return the communications that bring the tensors that the step leaves to their property at the end, where they
    are made in another: those that the program does not name are made the plainest way."""
    found = {}
    for ref, asked in ends(graph, program).values():
        made = program.steps[ref.node].outputs[ref.output]
        if made != asked:
            found[ref, asked] = Communication(tensor=ref, source=made, target=asked, method=_plainest(made, asked))
    return {**found, **{key: one for key, one in program.conversions().items() if key in found}}


def _plainest(source: Property, target: Property) -> str:
    if isinstance(source, Replicated):
        return "slice"
    if isinstance(target, Replicated):
        return "all_reduce" if isinstance(source, Partial) else "all_gather_grouped"
    return "reduce_scatter_grouped" if isinstance(source, Partial) else "all_to_all"


def _first_readers(graph: Graph, program: Program, known: dict[Key, Communication]) -> dict[str, list[Communication]]:
    """Return, for each node, the communications that must be done before it: each before its first reader, a parameter
    that is sent early and not kept also before its first reader in the backward."""
    parameters = set(graph.parameters.values())
    made: dict[Ref, Property] = {}
    done: set[Key] = set()
    found: dict[str, list[Communication]] = defaultdict(list)
    for node in graph.nodes:
        step = program.steps[node.name]
        for key in dict.fromkeys(zip(node.inputs, step.inputs, strict=True)):
            if made[key[0]] != key[1] and key not in done:
                done.add(key)
                found[node.name].append(known[key])
        made.update((Ref(node.name, number), held) for number, held in enumerate(step.outputs))
        if node.name == graph.loss.node:
            done -= {key for key in done if known[key].early and not known[key].kept and key[0] in parameters}
    return found


def _sends(
    graph: Graph, nodes: Sequence[Node], waits: Mapping[str, list[tuple[Communication, ...]]]
) -> dict[str, list[tuple[Communication, ...]]]:
    """Return before which of `nodes` each call starts: an early one where the early one before it is waited for."""
    found: dict[str, list[tuple[Communication, ...]]] = defaultdict(list)
    last = nodes[0].name
    for node in nodes:
        for several in waits[node.name]:
            found[last if several[0].early else node.name].append(several)
        if any(several[0].early for several in waits[node.name]) or node.name == graph.loss.node:
            last = node.name
    return found


def _used(action: Action) -> Iterator[Key]:
    match action:
        case ComputeNode(node, step):
            yield from zip(node.inputs, step.inputs, strict=True)
            yield from ((Ref(node.name, number), held) for number, held in enumerate(step.outputs))
        case Send(several):
            yield from ((one.tensor, one.source) for one in several)
        case Wait(several):
            yield from ((one.tensor, one.target) for one in several)
        case Leave() | Forget():
            pass


def _forgetting(actions: list[Action], gone: dict[int, list[Key]], left: dict[Key, list[str]]) -> Iterator[Action]:
    for index, action in enumerate(actions):
        yield action
        yield from (Leave(tuple(left[key]), key) for key in gone[index] if key in left)
        if gone[index]:
            yield Forget(tuple(gone[index]))
