"""The order in which a rank computes, sends and forgets: the same list of actions on every rank.

A tensor is sent just before the operator that reads it in its new property. What the program marks as early (parameters
gathered for use) is sent one call ahead, so that it travels while the operators before compute, and sent again for the
backward, so that no rank holds all parameters; what it marks as deferred (a gradient) is sent as soon as all that goes
in its call is made, and waited for when the next call has been sent. A tensor is forgotten after its last use; what the
step leaves (a gradient) is handed over before.

Parameters that a block gathers for a pass go in one call, as do the gradients that it makes: a call takes its latency
however little it sends, and a block has many small tensors, such as biases and norms. It is full at `BUCKET_BYTES`;
with parts of sharded parameters, which are there to spare memory, at the size of the largest parameter, for which there
is room anyway.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeAlias

from shardwright.records import record
from shardwright.synthesis.graph import REPLICATED, Graph, Node, Partial, Property, Ref, Replicated, Sharded
from shardwright.synthesis.program import Communication, Program, Step

IN_FLIGHT = 1  # calls beside the one just sent: what gradients are made of takes memory until they arrive
Key: TypeAlias = tuple[Ref, Property]  # a tensor in one property
BUCKET_BYTES = 25e6  # at which a call is full, as in PyTorch's DistributedDataParallel
# Whether nodes run from the loss on, which block began last, and whether they are in it.
Stretch: TypeAlias = tuple[bool, int, bool]
# What goes in one call, each with the node that reads it first or makes it.
Call: TypeAlias = list[tuple[str, Communication]]


@record(kw_only=False)
class ComputeNode:
    node: Node
    step: Step


@record(kw_only=False)
class Send:
    """Several are sent in one call."""

    several: tuple[Communication, ...]


@record(kw_only=False)
class Wait:
    several: tuple[Communication, ...]


@record(kw_only=False)
class Leave:
    """What the step leaves under `names` is done, and nothing in the step reads it any more."""

    names: tuple[str, ...]
    key: Key


@record(kw_only=False)
class Forget:
    keys: tuple[Key, ...]


Action: TypeAlias = ComputeNode | Send | Wait | Leave | Forget


def schedule(graph: Graph, program: Program) -> tuple[Action, ...]:
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
            later -= {(message.tensor, message.target) for message in action.several} - left.keys()
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
    closing = _closing(graph, program)
    known = {**closing, **program.conversions()}
    read = _first_readers(graph, program, known)
    waits = _starting(graph, read, early=True)
    there = {message for ones in read.values() for message in ones}
    late: dict[str, list[Communication]] = defaultdict(list)
    for message in [known[key] for key in closing if known[key] not in there]:
        late[message.tensor.node if message.deferred else graph.nodes[-1].name].append(message)
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
    starting: dict[str, list[tuple[Communication, ...]]] = defaultdict(list)
    for call in calls(graph, ready, early=early):
        starting[call[0 if early else -1][0]].append(tuple(message for _, message in call))
    return starting


def _closing(graph: Graph, program: Program) -> dict[Key, Communication]:
    """Return the communications that bring the tensors that the step leaves to their property at the end, where they
    are made in another: those that the program does not name are made the plainest way."""
    closing = {}
    for ref, asked in ends(graph, program).values():
        made = program.steps[ref.node].outputs[ref.output]
        if made != asked:
            closing[ref, asked] = Communication(tensor=ref, source=made, target=asked, method=_plainest(made, asked))
    return {**closing, **{key: message for key, message in program.conversions().items() if key in closing}}


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
    readers: dict[str, list[Communication]] = defaultdict(list)
    for node in graph.nodes:
        step = program.steps[node.name]
        for key in dict.fromkeys(zip(node.inputs, step.inputs, strict=True)):
            if made[key[0]] != key[1] and key not in done:
                done.add(key)
                readers[node.name].append(known[key])
        made.update((Ref(node.name, number), held) for number, held in enumerate(step.outputs))
        if node.name == graph.loss.node:
            done -= {key for key in done if known[key].early and not known[key].kept and key[0] in parameters}
    return readers


def _sends(
    graph: Graph, nodes: Sequence[Node], waits: Mapping[str, list[tuple[Communication, ...]]]
) -> dict[str, list[tuple[Communication, ...]]]:
    """Return before which of `nodes` each call starts: an early one where the early one before it is waited for."""
    sends: dict[str, list[tuple[Communication, ...]]] = defaultdict(list)
    last = nodes[0].name
    for node in nodes:
        for several in waits[node.name]:
            sends[last if several[0].early else node.name].append(several)
        if any(several[0].early for several in waits[node.name]) or node.name == graph.loss.node:
            last = node.name
    return sends


def _used(action: Action) -> Iterator[Key]:
    match action:
        case ComputeNode(node, step):
            yield from zip(node.inputs, step.inputs, strict=True)
            yield from ((Ref(node.name, number), held) for number, held in enumerate(step.outputs))
        case Send(several):
            yield from ((message.tensor, message.source) for message in several)
        case Wait(several):
            yield from ((message.tensor, message.target) for message in several)
        case Leave() | Forget():
            pass


def _forgetting(actions: list[Action], gone: dict[int, list[Key]], left: dict[Key, list[str]]) -> Iterator[Action]:
    for index, action in enumerate(actions):
        yield action
        yield from (Leave(tuple(left[key]), key) for key in gone[index] if key in left)
        if gone[index]:
            yield Forget(tuple(gone[index]))


def joined(source: Property, target: Property) -> bool:
    """Return whether what goes early or late is sent with others: parts that all gather, sums, shared out or not."""
    gathered = isinstance(source, Sharded) and isinstance(target, Replicated)
    return gathered or (isinstance(source, Partial) and not isinstance(target, Partial))


@record
class CallSizes:
    """The bytes of all leaves that a stretch of nodes is the first in its pass to read, of all gradients that it makes,
    and of the largest parameter."""

    stretch: Mapping[str, Stretch]
    read: Mapping[Stretch, float]
    made: Mapping[Stretch, float]
    largest: float

    def of(self, node: str, size_bytes: float, source: Property, target: Property, *, early: bool) -> float:
        """Return the bytes of the call in which a tensor goes that `node` reads first (`early`) or makes, if all go
        that may."""
        if not joined(source, target):
            return size_bytes
        total = (self.read if early else self.made)[self.stretch[node]]
        most = min(BUCKET_BYTES, self.largest) if _sharded(source, target) else BUCKET_BYTES
        return max(size_bytes, min(most, total))

    def full(self, filled: float, size_bytes: float, source: Property, target: Property) -> bool:
        """Return whether a call with `filled` bytes takes no more, or none of that size."""
        if _sharded(source, target):
            return filled + size_bytes > min(BUCKET_BYTES, self.largest)
        return filled >= BUCKET_BYTES


def call_sizes(graph: Graph) -> CallSizes:
    """Return what may go together."""
    stretch, nodes = _stretches(graph), graph.by_name()
    read, made = Counter[Stretch](), Counter[Stretch]()
    for ref, where in _first_read(graph, stretch):
        read[where] += nodes[ref.node].outputs[0].size_bytes
    for ref in graph.gradients.values():
        made[stretch[ref.node]] += nodes[ref.node].outputs[ref.output].size_bytes
    largest = max((nodes[ref.node].outputs[0].size_bytes for ref in graph.parameters.values()), default=0)
    return CallSizes(stretch=stretch, read=read, made=made, largest=float(largest))


def calls(graph: Graph, ready: Mapping[str, Sequence[Communication]], *, early: bool) -> list[Call]:
    """Return the calls in which all is sent that nodes ask for (`early`) or have ready, in the order of their first."""
    sizes = call_sizes(graph)
    values = graph.values()
    calls: list[Call] = []
    filling: dict[Hashable, Call] = {}
    for node in graph.nodes:
        for value in ready.get(node.name, ()):
            dtype = values[value.tensor].dtype
            apart = dtype == "bool" or not joined(value.source, value.target)
            together = not apart and (value.early if early else value.deferred)
            between = type(value.source), type(value.target)  # of which on one rank a method does not tell
            kind = (value.method, *between, dtype, sizes.stretch[node.name]) if together else (value, node.name)
            call = filling.get(kind, [])
            filled = float(sum(values[message.tensor].size_bytes for _, message in call))
            if not call or sizes.full(filled, values[value.tensor].size_bytes, value.source, value.target):
                call = filling[kind] = []
                calls.append(call)
            call.append((node.name, value))
    return calls


def _sharded(source: Property, target: Property) -> bool:
    return isinstance(source, Sharded) or isinstance(target, Sharded)


def _stretches(graph: Graph) -> dict[str, Stretch]:
    blocks = [block for repeat in graph.repeats for block in repeat.occurrences]
    number = {name: place for place, block in enumerate(blocks) for name in block}
    stretches, last, back = {}, -1, False
    for node in graph.nodes:
        last, back = number.get(node.name, last), back or node.name == graph.loss.node
        stretches[node.name] = (back, last, node.name in number)
    return stretches


def _first_read(graph: Graph, stretch: Mapping[str, Stretch]) -> set[tuple[Ref, Stretch]]:
    """Return the leaves with the stretches that read them first in the forward and in the backward."""
    leaves = {*graph.parameters.values(), *graph.buffers.values()}
    first = {
        (ref, stretch[node.name][0]): stretch[node.name]
        for node in reversed(graph.nodes)
        for ref in node.inputs
        if ref in leaves
    }
    return {(ref, where) for (ref, _), where in first.items()}
