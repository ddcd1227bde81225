"""Turns the joint graph that AOTAutograd traces, forward and backward, into the graph that programs are made of, and
finds the blocks of it that occur several times: the layers of a model.

The operators of the layers follow each other, forward from the first to the last, backward from the last to the first,
so the sequence of operators with their arguments and shapes is periodic twice. The two periods are joined where the
operators of a stretch of the backward read those of one stretch of the forward, and the wiring of every pair of
neighbouring blocks is compared: what one reads inside itself, in the block before or after, among its own parameters or
outside all blocks, the other must read in the same place.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors as kinds
from torch._subclasses.fake_tensor import FakeTensor

from shardwright.errors import bad
from shardwright.records import record
from shardwright.spmd.normalise import EFFECTS, NAMESPACES, normalised, value_of
from shardwright.spmd.operators import NAMESPACE
from shardwright.synthesis.graph import Argument, Graph, Node, Ref, RepeatedBlock, Value

_TABLES = ("parameters", "buffers", "inputs", "gradients", "buffer_updates")
_TOKENS = (kinds.ForwardTokenAOTInput, kinds.BackwardTokenAOTInput)
_CONSTANT_ELEMENTS = 4096
# Of our own operators, where the number stands that tells one that draws at random from another.
_NUMBERS = {"dropout": 2, "attention": 7, "attention_backward": 10}


def graph_of(joint: fx.GraphModule, names: Mapping[str, str], inputs: Sequence[str]) -> Graph:
    """Return the graph of a step.

    `names` leads from each parameter and buffer of the trace to its name in the graph, one name where parameters are
    tied; `inputs` are the names of the step's inputs. Raises `SpecError` for an operator that no shard can compute.
    """
    walk = _Walk(names, inputs)
    for node in joint.graph.nodes:
        if node.op == "get_attr":
            walk.add_constant(node, getattr(joint, node.target))
        else:
            walk.add(node)
    return walk.graph()


class _Walk:
    """The graph so far, and the references that stand for the results of FX nodes."""

    def __init__(self, names: Mapping[str, str], inputs: Sequence[str]) -> None:
        self.names, self.input_names = names, inputs
        self.nodes: list[Node] = []
        self.makers: dict[str, Node] = {}
        self.values: dict[Ref, Value] = {}
        self.found: dict[fx.Node, Any] = {}
        self.tables: dict[str, dict[str, Ref]] = {name: {} for name in _TABLES}
        self.loss: Ref | None = None
        self.counts: dict[str, itertools.count[int]] = {}
        self.draws: dict[int, int] = {}

    def value(self, ref: Ref) -> Value:
        return self.values[ref]

    def origin(self, ref: Ref) -> Node:
        return self.makers[ref.node]

    def make(self, op: str, args: tuple[Argument, ...], *outputs: Value, **kwargs: Argument) -> Ref:
        """Append a node and return its first result."""
        stem = op.split(".")[0].strip("_")
        name = f"{stem}_{next(self.counts.setdefault(stem, itertools.count()))}"
        self.makers[name] = Node(name=name, op=op, args=args, kwargs=kwargs, outputs=outputs)
        self.nodes.append(self.makers[name])
        self.values.update({Ref(name, number): value for number, value in enumerate(outputs)})
        return Ref(name)

    def add(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._add_leaf(node)
        elif node.op == "output":
            self._add_results(node)
        elif node.target is operator.getitem:
            self.found[node] = self.found[node.args[0]][node.args[1]]  # type: ignore[index]
        else:
            self._add_operator(node)

    def add_constant(self, node: fx.Node, tensor: Any) -> None:
        """Add a tensor that the module's code makes of numbers, or holds without having registered it."""
        values = tensor.constant if isinstance(tensor, FakeTensor) else tensor
        if not isinstance(values, torch.Tensor) or values.is_meta or values.numel() > _CONSTANT_ELEMENTS:
            shape = tuple(getattr(tensor, "shape", ()))
            raise bad("the module", f"holds a constant tensor of shape {shape}", "register it as a buffer")
        numbers = tuple(values.detach().flatten().tolist())
        value = value_of(values)
        self.found[node] = self.make("constant", (numbers,), value, dtype=value.dtype)

    def graph(self) -> Graph:
        assert self.loss is not None
        ends = [self.loss, *(ref for name in ("gradients", "buffer_updates") for ref in self.tables[name].values())]
        leaves = [ref for name in ("parameters", "buffers", "inputs") for ref in self.tables[name].values()]
        needed = {ref.node for ref in (*ends, *leaves)}
        for node in reversed(self.nodes):
            if node.name in needed:
                needed.update(ref.node for ref in node.inputs)
        kept = tuple(node for node in self.nodes if node.name in needed)
        tables: dict[str, Any] = {name: dict(table) for name, table in self.tables.items()}
        return Graph(nodes=kept, loss=self.loss, **tables)

    def _add_leaf(self, node: fx.Node) -> None:
        kind = node.meta["desc"]
        if isinstance(kind, _TOKENS):
            return
        value = value_of(node.meta["val"])
        if isinstance(kind, kinds.TangentAOTInput):
            self.found[node] = self.make("full", (value.shape, 1.0), value, dtype=value.dtype)
            return
        if isinstance(kind, kinds.PlainAOTInput):
            table, name = "inputs", self.input_names[kind.idx]
        elif isinstance(kind, kinds.ParamAOTInput | kinds.BufferAOTInput):
            table = "parameters" if isinstance(kind, kinds.ParamAOTInput) else "buffers"
            name = self.names[kind.target]
        else:
            raise bad("the module", f"has tensors that share memory ({kind})", "clone one of them")
        if name not in self.tables[table]:
            self.tables[table][name] = self.make(table.removesuffix("s"), (name,), value)
        self.found[node] = self.tables[table][name]

    def _add_results(self, node: fx.Node) -> None:
        (results,) = node.args
        for result, kind in zip(results, node.meta["desc"], strict=True):  # type: ignore[arg-type]
            if result is None:
                continue
            ref: Any = self.found.get(result)
            if isinstance(kind, kinds.PlainAOTOutput):
                self.loss = ref
            elif isinstance(kind, kinds.InputMutationAOTOutput):
                self._add_mutation(kind.mutated_input, ref)
            elif isinstance(kind, kinds.MetadataMutationAOTOutput):
                raise bad("the module", f"changes the shape of a parameter or input in place ({kind})", "clone it")
            elif isinstance(kind, kinds.GradAOTOutput) and isinstance(kind.grad_of, kinds.ParamAOTInput):
                table, name = self.tables["gradients"], self.names[kind.grad_of.target]
                table[name] = self.make("add.Tensor", (table[name], ref), self.value(ref)) if name in table else ref

    def _add_mutation(self, changed: Any, ref: Ref) -> None:
        if not isinstance(changed, kinds.BufferAOTInput):
            hint = "without max_norm" if self.makers[ref.node].op.startswith("embedding_renorm") else "clone it before"
            raise bad("the module", f"changes {self._name(changed)} in place, in the forward", hint)
        self.tables["buffer_updates"][self.names[changed.target]] = ref

    def _name(self, changed: Any) -> str:
        if isinstance(changed, kinds.PlainAOTInput):
            return f"the batch's {self.input_names[changed.idx]}"
        return (
            f"the parameter {self.names[changed.target]}" if isinstance(changed, kinds.ParamAOTInput) else str(changed)
        )

    def _add_operator(self, node: fx.Node) -> None:
        target: Any = node.target
        if target is torch.ops.higher_order.with_effects:
            if node.args[1] in EFFECTS:
                self.found[node] = (None, None)
                return
            raise bad("the module", f"calls {node.args[1]}, which has effects beside its result", "write it without")
        if not isinstance(target, torch._ops.OpOverload):
            raise bad("the module", f"calls {target}, of which programs know nothing", "write it without")
        if target.namespace not in NAMESPACES:
            raise bad("the module", f"calls {target}, which is no operator of PyTorch's own", "write it in PyTorch")
        name = target._schema.name.split("::")[1]
        if torch.Tag.nondeterministic_seeded in target.tags and target.namespace != NAMESPACE:
            # It draws by local shape, and on each rank by itself: a shard would draw other numbers than the whole.
            hint = "put what is drawn into the batch, or use dropout, which draws by position"
            raise bad("the module", f"draws random numbers by {target}", hint)
        args = tuple(self._argument(part) for part in node.args)
        if (
            target.namespace == NAMESPACE
            and name in _NUMBERS
            and args[_NUMBERS[name] - (1 if name == "dropout" else 3)]
        ):
            place = _NUMBERS[name]
            args = (*args[:place], self.draws.setdefault(args[place], len(self.draws)), *args[place + 1 :])
        kwargs = {key: self._argument(part) for key, part in node.kwargs.items()}
        outputs = node.meta.get("val")
        listed = tuple(outputs) if isinstance(outputs, list | tuple) else (outputs,)
        values = tuple(value_of(value) if isinstance(value, torch.Tensor) else Value((0,)) for value in listed)
        self.found[node] = normalised(self, target, args, kwargs, values)

    def _argument(self, part: Any) -> Any:
        if isinstance(part, fx.Node):
            return self.found[part]
        if isinstance(part, list | tuple):
            return tuple(self._argument(item) for item in part)
        if isinstance(part, torch.dtype):
            return str(part).removeprefix("torch.")
        return part if isinstance(part, int | float | complex | bool | str | None) else str(part)


_LEAVES = {"parameter", "buffer"}
LEAST_OPERATORS = 8


@record(kw_only=False)
class _Run:
    """`count` stretches of `period` operators each, the first at `start`."""

    start: int
    period: int
    count: int

    def stretch(self, number: int) -> range:
        first = self.start + number * self.period
        return range(first, first + self.period)

    @property
    def covered(self) -> int:
        return self.period * self.count

    @property
    def end(self) -> int:
        return self.start + self.period * self.count


def with_repeats(graph: Graph) -> Graph:
    """Return `graph` with its repeated blocks, those with the most operators first; with none if there are none."""
    body = [node for node in graph.nodes if node.op not in _LEAVES]
    left = list(_runs(_letters(body)))
    blocks: list[RepeatedBlock] = []
    while left:
        run = left.pop(0)
        for other in left:
            forward, backward = sorted((run, other), key=lambda one: one.start)
            repeat = _joined(graph, body, forward, backward)
            if repeat is not None:
                left.remove(other)
                blocks.append(repeat)
                break
    return replace(graph, repeats=tuple(blocks))


def _letters(body: Sequence[Node]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a number for each operator, the same for the same operator, arguments and shapes."""
    known: dict[Any, int] = {}
    shapes = {Ref(node.name, number): value for node in body for number, value in enumerate(node.outputs)}
    letters = []
    for node in body:
        kwargs = tuple(sorted((name, _plain(node.op, part)) for name, part in node.kwargs.items()))
        read = tuple(shapes.get(ref) for ref in node.inputs)
        word = (node.op, _plain(node.op, node.args), kwargs, node.outputs, read)
        letters.append(known.setdefault(word, len(known)))
    return np.array(letters, dtype=np.int64)


def _plain(op: str, argument: Argument) -> Any:
    """Return the argument with "*" in place of every tensor; numbers of operators that draw at random do not count."""
    if op in ("dropout", "attention", "attention_backward") and isinstance(argument, tuple) and argument:
        argument = argument[:-1]
    if isinstance(argument, tuple):
        return tuple(_plain("", part) for part in argument)
    return "*" if isinstance(argument, Ref) else (type(argument).__name__, argument)


def _runs(letters: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[_Run]:
    """Yield the periodic stretches of the sequence, none overlapping another, those that cover most first, each with
    its least period."""
    free = np.ones(len(letters), dtype=bool)
    while (best := _longest_run(letters, free)) is not None:
        free[best.start : best.end] = False
        yield best


def _longest_run(
    letters: np.ndarray[Any, np.dtype[np.int64]], free: np.ndarray[Any, np.dtype[np.bool_]]
) -> _Run | None:
    best: _Run | None = None
    for period in range(LEAST_OPERATORS, len(letters) // 2 + 1):
        alike = (letters[period:] == letters[:-period]) & free[period:] & free[:-period]
        start, length = _longest_stretch(alike)
        run = _Run(start, period, length // period + 1)
        if run.count > 1 and (best is None or run.covered > best.covered):
            best = run
    return best


def _longest_stretch(flags: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[int, int]:
    """Return where the longest stretch of true flags starts, and its length."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(edges[2 * longest]), int(lengths[longest])


def _joined(graph: Graph, body: Sequence[Node], forward: _Run, backward: _Run) -> RepeatedBlock | None:
    """Return the repeat whose blocks are a stretch of each run, None if the two do not belong together."""
    where = {body[index].name: number for number in range(forward.count) for index in forward.stretch(number)}
    reads = Counter(
        number + where[ref.node]
        for number in range(backward.count)
        for index in backward.stretch(number)
        for ref in body[index].inputs
        if ref.node in where
    )
    for total, _ in reads.most_common(3):
        numbers = [n for n in range(forward.count) if 0 <= total - n < backward.count]
        blocks = [
            [body[index].name for run, n in ((forward, number), (backward, total - number)) for index in run.stretch(n)]
            for number in numbers
        ]
        blocks = _with_feeders(graph, blocks)
        if len(blocks) > 1 and _alike(graph, blocks):
            return RepeatedBlock(occurrences=tuple(map(tuple, _with_leaves(graph, blocks))))
    return None


def _with_feeders(graph: Graph, blocks: list[list[str]]) -> list[list[str]]:
    """Return the blocks, each after the operators outside that it alone reads, in the order of execution: the slice of
    a sequence that a step of a loop takes. What not all blocks have belongs to none."""
    place: dict[str, tuple[int, Any]] = {
        name: (number, index) for number, block in enumerate(blocks) for index, name in enumerate(block)
    }
    nodes = graph.by_name()
    readers: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for node in graph.nodes:
        for slot, ref in enumerate(node.inputs):
            readers[ref.node].append((node.name, slot))
    kept = {ref.node for table in (graph.gradients, graph.buffer_updates) for ref in table.values()}
    feeders: list[dict[Any, str]] = [{} for _ in blocks]
    for node in reversed(graph.nodes):
        read = readers[node.name]
        fed = {place[name][0] if name in place else -1 for name, _ in read}
        if node.name not in place and node.inputs and node.name not in kept and len(fed) == 1 and min(fed) >= 0:
            name, slot = read[0]
            where = ("feeder", place[name][1], slot, node.op, node.outputs)
            place[node.name] = (min(fed), where)
            feeders[min(fed)][where] = node.name
    common = [where for where in reversed(feeders[-1]) if all(where in feeder for feeder in feeders)]
    order = {node: number for number, node in enumerate(nodes)}
    return [
        [*sorted((feeder[where] for where in common), key=lambda name: order[name]), *block]
        for feeder, block in zip(feeders, blocks, strict=True)
    ]


def _alike(graph: Graph, blocks: Sequence[Sequence[str]]) -> bool:
    """Return whether neighbouring blocks are wired alike. The first and the last may read from outside what the others
    read from their neighbours."""
    nodes = graph.by_name()
    place = {name: (number, index) for number, block in enumerate(blocks) for index, name in enumerate(block)}
    place |= _leaves(graph, place)

    def wire(ref: Ref, number: int) -> tuple[Any, ...]:
        if ref.node not in place:
            return "outside", ref
        other, index = place[ref.node]
        return ("beside", other - number, index, ref.output) if abs(other - number) < 2 else ("far",)

    for number, (one, other) in enumerate(pairwise(blocks)):
        edge = number == 0 or number == len(blocks) - 2
        for first, second in zip(one, other, strict=True):
            for a, b in zip(nodes[first].inputs, nodes[second].inputs, strict=True):
                left, right = wire(a, number), wire(b, number + 1)
                crossing = {left[0], right[0]} == {"outside", "beside"}
                if (left != right and not (edge and crossing)) or left == ("far",):
                    return False
    return True


def _leaves(graph: Graph, place: dict[str, tuple[int, Any]]) -> dict[str, tuple[int, Any]]:
    """Return the block of each parameter and buffer that a block is the first to read, and where in it that is; without
    those that blocks share which are no neighbours."""
    ends: dict[str, tuple[int, Any]] = {}
    readers: dict[str, set[int]] = defaultdict(set)
    leaves = {ref.node for ref in (*graph.parameters.values(), *graph.buffers.values())}
    for node in graph.nodes:
        number, index = place.get(node.name, (-1, 0))
        for slot, ref in enumerate(node.inputs):
            if ref.node in leaves:
                ends.setdefault(ref.node, (number, ("leaf", index, slot)))
                readers[ref.node].add(number)
    return {
        name: (number, where)
        for name, (number, where) in ends.items()
        if number >= 0 and all(abs(reader - number) < 2 or reader < 0 for reader in readers[name])
    }


def _with_leaves(graph: Graph, blocks: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the blocks, each after the parameters and buffers that it is the first to read, in the order of reading.

    What not all blocks have belongs to none.
    """
    place = {name: (number, index) for number, block in enumerate(blocks) for index, name in enumerate(block)}
    leaves_of: list[dict[Any, str]] = [{} for _ in blocks]
    for name, (number, where) in _leaves(graph, place).items():
        leaves_of[number][where] = name
    common = [where for where in leaves_of[0] if all(where in block_leaves for block_leaves in leaves_of)]
    return [
        [*(block_leaves[where] for where in common), *block]
        for block_leaves, block in zip(leaves_of, blocks, strict=True)
    ]
