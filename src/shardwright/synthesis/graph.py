"""The operator graph of one training step, forward and backward, as data, and how the parts that ranks hold make up its
tensors.

A node is one operator. `op` is the name of the ATen overload without its namespace, and without `.default`: "mm",
"view", "add.Tensor", "sum.dim_IntList", "native_layer_norm". What takes one of several results of an operator refers to
it by its number, so there is no `getitem`. Operators of our own, `→` leading to their results:

    parameter, buffer, input () → tensor
    constant (its elements in a row) → tensor
    attention (q, k, v, mask | None, …) → out, logsumexp
        q [batch, heads, queries, size], k and v [batch, heads or a divisor of them, keys, size]
    attention_backward (grad_out, q, k, v, mask | None, out, logsumexp, …) → dq, dk, dv
    cross_entropy (logits [rows, classes], target [rows], ignored class) → loss of each row, logsumexp [rows]
    cross_entropy_backward (grad [rows], logits, target, logsumexp, ignored class) → dlogits
    dropout (x, probability, number) → y: the mask is a function of seed, number and global index, the gradient's too
    grouped_mm (x [rows, k], w [experts, k, n], expert of each row) → [rows, n]
    grouped_mm_weight (x [rows, k], grad [rows, n], expert of each row, experts) → [experts, k, n]

`flops` and `traffic_bytes` are the floating-point operations and bytes of an operator on whole tensors.

A sharded dimension of length `outer` · `units` · `inner` is cut between its `units`: a rank with n of them holds, of
each of the `outer` stretches, n · `inner` neighbours. So a batch sharded by rows stays sharded when a view joins it
with the sequence (units = rows, inner = sequence length), and a fused projection of queries, keys and values is sharded
by heads (outer = 3, units = heads, inner = head size). How many units each rank has depends on the ratio and on the
number of units alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from shardwright.errors import bad
from shardwright.records import record

GRAPH_VERSION = 1
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


@record(kw_only=False)
class Value:
    """A tensor: its global shape and the name of its element type ("float32")."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One result of a node."""

    node: str
    output: int = 0


Argument: TypeAlias = "Ref | complex | float | bool | str | tuple[Argument, ...] | None"


@record(slots=False)
class Node:
    """One operator on whole tensors, and the tensors that it returns."""

    name: str
    op: str
    args: tuple[Argument, ...] = ()
    kwargs: Mapping[str, Argument] = field(default_factory=dict)
    outputs: tuple[Value, ...] = ()

    @cached_property
    def inputs(self) -> tuple[Ref, ...]:
        """The tensors that it reads, in the order of its arguments; one that is read twice stands there twice."""
        return tuple(_references((*self.args, *self.kwargs.values())))


@record
class RepeatedBlock:
    """A block that occurs several times: the names of the nodes of each occurrence, forward and backward together, in
    the order of execution. The nodes at one position of all occurrences do the same to tensors of the same shapes."""

    occurrences: tuple[tuple[str, ...], ...]

    @property
    def count(self) -> int:
        return len(self.occurrences)


@record
class Graph:
    """A training step: `nodes` in an order of execution, the tensors that go in and those that come out.

    `parameters`, `buffers` and `inputs` lead from the names that the user knows to nodes of the operator of that name;
    `gradients` from the name of a parameter to its gradient, `buffer_updates` from the name of a buffer to its new
    value. A tied parameter has one name.
    """

    nodes: tuple[Node, ...]
    parameters: Mapping[str, Ref]
    inputs: Mapping[str, Ref]
    loss: Ref
    gradients: Mapping[str, Ref]
    buffers: Mapping[str, Ref] = field(default_factory=dict)
    buffer_updates: Mapping[str, Ref] = field(default_factory=dict)
    repeats: tuple[RepeatedBlock, ...] = ()

    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    def values(self) -> dict[Ref, Value]:
        """Return what nodes give by its reference."""
        return {Ref(node.name, number): value for node in self.nodes for number, value in enumerate(node.outputs)}


def words(text: str) -> frozenset[str]:
    """Return the names of operators that `text` lists."""
    return frozenset(text.split())


def to_json(graph: Graph) -> str:
    """Return `graph` as one JSON document, a line a node."""
    lines = ",\n".join(json.dumps(_node_document(node), separators=(",", ":")) for node in graph.nodes)
    head = {
        "version": GRAPH_VERSION,
        **{table: {name: _document(ref) for name, ref in getattr(graph, table).items()} for table in _TABLES},
        "loss": _document(graph.loss),
        "repeats": [repeat.occurrences for repeat in graph.repeats],
    }
    body = ",\n".join(f"{json.dumps(name)}:{json.dumps(part, separators=(',', ':'))}" for name, part in head.items())
    return f'{{{body},\n"nodes":[\n{lines}\n]}}\n'


def from_json(text: str, source: str = "graph") -> Graph:
    """Return the graph that `to_json` wrote. Raises `SpecError` if it is none; `source` names it in the message."""
    try:
        document = json.loads(text)
        if document["version"] != GRAPH_VERSION:
            raise bad(source, f"version {document['version']} of graphs is not known", f"known: {GRAPH_VERSION}")
        graph = Graph(
            nodes=tuple(_node(part) for part in document["nodes"]),
            loss=_ref(document["loss"]),
            repeats=tuple(RepeatedBlock(occurrences=tuple(map(tuple, part))) for part in document["repeats"]),
            **{name: {key: _ref(part) for key, part in document[name].items()} for name in _TABLES},
        )
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise bad(source, f"is no graph of operators: {error!r}") from error
    check(graph, source)
    return graph


def check(graph: Graph, source: str = "graph") -> None:
    """Raise `SpecError` unless every tensor is made once, and before it is read."""
    made: set[Ref] = set()
    names: set[str] = set()
    for node in graph.nodes:
        if node.name in names:
            raise bad(source, f"two nodes have the name {node.name!r}")
        missing = [ref for ref in node.inputs if ref not in made]
        if missing:
            raise bad(source, f"{node.name} reads {missing[0].node}[{missing[0].output}] before it is made")
        names.add(node.name)
        made.update(Ref(node.name, number) for number in range(len(node.outputs)))
    named = [graph.loss, *(ref for name in _TABLES for ref in getattr(graph, name).values())]
    lost = [ref for ref in named if ref not in made]
    if lost:
        raise bad(source, f"no node makes {lost[0].node}[{lost[0].output}]")
    strangers = {name for repeat in graph.repeats for block in repeat.occurrences for name in block} - names
    if strangers:
        raise bad(source, f"no node has the name {min(strangers)!r}, which a repeated block lists")


_TABLES = ("parameters", "buffers", "inputs", "gradients", "buffer_updates")
_NUMBERS: dict[str, type[float] | type[complex]] = {"float": float, "complex": complex}  # that JSON has no words for


def _references(arguments: tuple[Argument, ...]) -> Iterator[Ref]:
    for argument in arguments:
        if isinstance(argument, Ref):
            yield argument
        elif isinstance(argument, tuple):
            yield from _references(argument)


def _node_document(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "op": node.op,
        "args": _document(node.args),
        **({"kwargs": {name: _document(part) for name, part in node.kwargs.items()}} if node.kwargs else {}),
        "outputs": [[value.dtype, *value.shape] for value in node.outputs],
    }


def _document(argument: Argument) -> Any:
    if isinstance(argument, Ref):
        return {"ref": argument.node, **({"output": argument.output} if argument.output else {})}
    if isinstance(argument, tuple):
        return [_document(part) for part in argument]
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"float": str(argument)}
    if isinstance(argument, complex):
        return {"complex": str(argument)}
    return argument


def _node(document: Mapping[str, Any]) -> Node:
    return Node(
        name=document["name"],
        op=document["op"],
        args=tuple(_argument(part) for part in document["args"]),
        kwargs={name: _argument(part) for name, part in document.get("kwargs", {}).items()},
        outputs=tuple(Value(tuple(part[1:]), part[0]) for part in document["outputs"]),
    )


def _ref(document: Mapping[str, Any]) -> Ref:
    return Ref(document["ref"], document.get("output", 0))


def _argument(document: Any) -> Argument:
    if isinstance(document, list):
        return tuple(_argument(part) for part in document)
    if isinstance(document, dict):
        kind = next((kind for kind in _NUMBERS if kind in document), None)
        return _NUMBERS[kind](document[kind]) if kind else _ref(document)
    argument: Argument = document
    return argument


# Operators that move nothing: views, and what is there before the step.
FREE = words(
    "view _unsafe_view reshape t transpose.int permute expand unsqueeze squeeze squeeze.dim squeeze.dims detach "
    "alias select.int slice.Tensor unbind.int split.Tensor unsafe_split.Tensor chunk split_with_sizes parameter "
    "buffer input flatten.using_ints empty_like empty.memory_format"
)


def flops(node: Node, operands: tuple[Value, ...]) -> float:
    """Return the operations of `node`: two for each multiplication and addition of a product, one for each element of
    anything else that computes.

    Attention forward has two products of queries × keys × size, backward five (the scores are computed again).
    """
    shapes = [value.shape for value in operands]
    op = node.op
    if op in FREE:
        return 0.0
    if op in ("mm", "bmm", "mv", "dot"):
        return 2.0 * math.prod(shapes[0]) * (shapes[1][-1] if len(shapes[1]) > 1 else 1)
    if op == "addmm":
        return 2.0 * math.prod(shapes[1]) * shapes[2][-1]
    if op in ("grouped_mm", "grouped_mm_weight"):
        rows, depth = shapes[0]
        return 2.0 * rows * depth * shapes[1][-1]
    if op in ("attention", "attention_backward"):
        back = op.endswith("backward")
        query, key = (shapes[1], shapes[2]) if back else (shapes[0], shapes[1])
        return (10.0 if back else 4.0) * math.prod(query) * key[2]
    if op == "convolution":
        return 2.0 * math.prod(node.outputs[0].shape) * math.prod(shapes[1][1:])
    if op == "convolution_backward":
        wanted = sum(1 for value in node.outputs[:2] if value.elements)
        return 2.0 * wanted * math.prod(shapes[0]) * math.prod(shapes[2][1:])
    return float(max((value.elements for value in (*operands, *node.outputs)), default=0))


def product(node: Node) -> bool:
    """Return whether `node` is a product, whose operations are those that a GPU's FLOP/s are stated for."""
    return node.op in PRODUCTS


PRODUCTS = words(
    "mm bmm mv dot addmm grouped_mm grouped_mm_weight attention attention_backward convolution convolution_backward"
)


def traffic_bytes(node: Node, operands: tuple[Value, ...]) -> float:
    if node.op in FREE:
        return 0.0
    return float(sum(value.size_bytes for value in (*operands, *node.outputs)))


COMPUTE = "compute"  # the ratio of work: rows of the batch
FEATURES = "features"  # the ratio of work that is cut otherwise: by features, heads, classes, experts
STATE = "state"  # the ratio of parameters, gradients and optimizer state that are gathered for use


@record(kw_only=False)
class Replicated:
    """Every rank holds the whole tensor."""

    def __str__(self) -> str:
        return "replicated"


@record(kw_only=False)
class Partial:
    """The tensor is the sum of what the ranks hold."""

    def __str__(self) -> str:
        return "partial sum"


@record(kw_only=False)
class Sharded:
    """Dimension `dim` is cut between its `units`, in the proportions of `ratio`."""

    dim: int
    units: int
    ratio: str = COMPUTE
    outer: int = 1

    def __str__(self) -> str:
        stretches = f"{self.outer}×" if self.outer > 1 else ""
        return f"sharded {self.dim} ({stretches}{self.units} by {self.ratio})"

    def local_shape(self, shape: tuple[int, ...], held: int) -> tuple[int, ...]:
        """Return the shape of the part with `held` of the units."""
        inner = shape[self.dim] // (self.outer * self.units)
        return (*shape[: self.dim], self.outer * held * inner, *shape[self.dim + 1 :])


Property: TypeAlias = Replicated | Partial | Sharded
REPLICATED, PARTIAL = Replicated(), Partial()
PLAIN: dict[str, Property] = {"replicated": REPLICATED, "partial": PARTIAL}

# The units of each rank, by ratio and number of units in all.
Sizes: TypeAlias = Mapping[tuple[str, int], tuple[int, ...]]


def local_shape(shape: tuple[int, ...], held: Property, sizes: Sizes, rank: int) -> tuple[int, ...]:
    """Return the shape of what `rank` holds of a tensor of `shape`."""
    if isinstance(held, Sharded):
        return held.local_shape(shape, sizes[held.ratio, held.units][rank])
    return shape


def property_document(held: Property) -> list[str | int]:
    """Return `held` as JSON: ["replicated"], ["partial"] or ["sharded", dim, units, ratio, outer]."""
    if isinstance(held, Sharded):
        return ["sharded", held.dim, held.units, held.ratio, held.outer]
    return ["partial" if isinstance(held, Partial) else "replicated"]


def property_of_document(part: list[str | int]) -> Property:
    kind, *rest = part
    if kind == "sharded":
        dim, units, ratio, outer = rest
        return Sharded(int(dim), int(units), str(ratio), int(outer))
    return PLAIN[str(kind)]
