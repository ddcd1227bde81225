"""What a search over programs decides, as columns that it takes or leaves: a rule for each kind of node, and a way to
convert each tensor between the property in which it is made and those that rules ask for.

Nodes of repeated blocks are tied to one decision. A view decides nothing: it passes on the property of what it views,
so its readers ask the viewed tensor. A parameter's rule is where it is stored, and its gradient is asked for in the
same property. Shares and machines change what columns cost, and nothing of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.records import record
from shardwright.synthesis.graph import REPLICATED, STATE, Graph, Node, Property, Ref, Sharded, Value, words
from shardwright.synthesis.machines import possible
from shardwright.synthesis.rules.candidates import choices
from shardwright.synthesis.rules.signature import OperatorRule
from shardwright.synthesis.schedule import call_sizes
from shardwright.synthesis.shorten import Short, shorten

VIEWS = words("view _unsafe_view reshape t transpose.int permute unsqueeze squeeze squeeze.dim detach alias")
END = "end"
BLOCKING, DEFERRED, EARLY = 0, 1, 2


@record
class ParameterState:
    """What is held all the time for each byte of a parameter: itself and the optimizer's moments, and, where the
    gradients of several batches are added up, their sum. A gradient as such is held from when it is made to the end, or
    until it is added."""

    bytes: float
    sum_bytes: float = 0.0

    @property
    def gradient_bytes(self) -> float:
        """What is held of a gradient at the end of the step; one of a single batch is of its parameter's type."""
        return self.sum_bytes or 1.0


ADAM = ParameterState(bytes=3.0)  # a parameter and two moments, all of one type


@dataclass(slots=True, kw_only=True)
class Decision:
    """One rule is chosen for all `members`, nodes of the short graph that occur `weight` times in all."""

    name: str
    node: Node
    rules: tuple[OperatorRule, ...]
    operands: tuple[Value, ...]
    members: list[str] = field(default_factory=list)
    weight: int = 0


@record(kw_only=False)
class Reader:
    """A decision that reads a tensor, and the property that each of its rules asks for. `at_end`: nothing computes with
    it (a gradient meets its parameter, the loss is told), so that it can wait for the end of the step."""

    decision: int
    asked: tuple[Property, ...]
    at_end: bool


@dataclass(slots=True, kw_only=True)
class Use:
    """Tensors made by one decision and read by the same others. `places` are the nodes of the short graph that make
    them, `first` and `last` those that read each first and last, `ending` is the index of the last reader (-1: the end
    of the step). An `early` one is there when the step starts. A parameter has one for its readers in
    the forward and one for those in the backward."""

    decision: int
    output: int
    value: Value
    readers: tuple[Reader, ...]
    early: bool
    ending: int
    places: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    weight: int = 0


@record(eq=False)
class Decisions:
    """`order` has the decision (or -1) of each node of the short graph, `weights` how often it occurs; the backward
    pass begins with node `loss`. `views` has the rules of nodes that decide nothing. Parameters that are gathered for
    the forward are `kept` for the backward, or gathered again."""

    short: Short
    decisions: tuple[Decision, ...]
    uses: tuple[Use, ...]
    order: tuple[int, ...]
    weights: tuple[int, ...]
    loss: int
    unknown: tuple[str, ...]
    views: Mapping[str, tuple[OperatorRule, ...]]
    state: ParameterState = ADAM
    kept: bool = False

    def kept_from(self) -> dict[int, int]:
        """Return the use in the backward of each parameter that is kept, and its use in the forward."""
        forward: dict[tuple[int, int, tuple[int, ...]], int] = {}
        kept: dict[int, int] = {}
        for number, use in enumerate(self.uses if self.kept else ()):
            if use.early:
                before = forward.setdefault((use.decision, use.output, tuple(use.places)), number)
                kept |= {number: before} if before != number else {}
        return kept


@record(kw_only=False)
class _Root:
    """The tensor behind views, and the property in which it must be for the view to be in another."""

    ref: Ref
    behind: Mapping[Property, Property] | None

    def of(self, asked: Property) -> Property:
        return asked if self.behind is None else self.behind[asked]


def decisions(graph: Graph, *, ranks: int = 2, state_ratio: bool = False, state: ParameterState = ADAM) -> Decisions:
    """Return the decisions of `graph` on `ranks` devices. With `state_ratio`, parameters may also be stored by the
    ratio of state."""
    short = shorten(graph)
    chosen = choices(short.graph, ranks)
    rules = {node.name: _stored(chosen.rules[node.name], node, state_ratio) for node in short.graph.nodes}
    roots = _roots(short.graph, rules)
    values = short.graph.values()
    made: dict[str, int] = {}
    found: list[Decision] = []
    for node in short.graph.nodes:
        if node.name in roots:
            continue
        tie = short.tie[node.name]
        if tie not in made:
            made[tie] = len(found)
            operands = tuple(values[ref] for ref in node.inputs)
            found.append(Decision(name=tie, node=node, rules=rules[node.name], operands=operands))
        value = found[made[tie]]
        value.members.append(node.name)
        value.weight += short.weight[node.name]
    end = OperatorRule(name=END, inputs=(REPLICATED,), outputs=())
    found.append(Decision(name=END, node=Node(name=END, op=END), rules=(end,), operands=(), weight=1))
    number = {node.name: made.get(short.tie[node.name], -1) for node in short.graph.nodes}
    reads = _reads(short.graph, rules, roots, number, len(found) - 1)
    order = {node.name: place for place, node in enumerate(short.graph.nodes)}
    return Decisions(
        short=short,
        decisions=tuple(found),
        uses=tuple(_uses(short, reads, number, order, values)),
        order=tuple(-1 if node.name in roots else number[node.name] for node in short.graph.nodes),
        weights=tuple(short.weight[node.name] for node in short.graph.nodes),
        loss=order[short.graph.loss.node],
        unknown=chosen.unknown,
        views={short.tie[name]: rules[name] for name in roots},
        state=state,
    )


def _stored(rules: tuple[OperatorRule, ...], node: Node, state_ratio: bool) -> tuple[OperatorRule, ...]:
    """Return the rules of a node; inputs are given whole, for each rank takes its part of them for nothing, and
    parameters may be cut along their longest dimension for storage alone."""
    if node.op == "input":
        return rules[:1]
    if node.op != "parameter" or not state_ratio or not node.outputs[0].shape:
        return rules
    shape = node.outputs[0].shape
    dim = max(range(len(shape)), key=lambda dim: shape[dim])
    held = Sharded(dim, shape[dim], STATE)
    return (*rules, OperatorRule(name="state", inputs=(), outputs=(held,), cut=held))


def _roots(graph: Graph, rules: Mapping[str, tuple[OperatorRule, ...]]) -> dict[str, _Root]:
    """Return the views that pass every property that their readers could ask for."""
    asked: dict[Ref, set[Property]] = {}
    for node in graph.nodes:
        for rule in rules[node.name]:
            for ref, operand in zip(node.inputs, rule.inputs, strict=True):
                asked.setdefault(ref, set()).add(operand)
    for ref, leaf in _ends(graph):
        asked.setdefault(ref, set()).update(rule.outputs[0] for rule in rules[leaf])
    roots: dict[str, _Root] = {}
    behind: Mapping[Property, Property]
    for node in reversed(graph.nodes):
        wanted = asked.get(Ref(node.name), set())
        behind = {rule.outputs[0]: rule.inputs[0] for rule in rules[node.name] if node.inputs}
        if node.op in VIEWS and len(node.inputs) == 1 and wanted <= behind.keys():
            roots[node.name] = _Root(node.inputs[0], behind)
    for node in graph.nodes:
        if node.name in roots:
            ref, behind = roots[node.name].ref, roots[node.name].behind or {}
            before = roots.get(ref.node)
            if before is not None:
                passed = {out: before.of(inner) for out, inner in behind.items() if inner in (before.behind or {})}
                roots[node.name] = _Root(before.ref, passed)
    return roots


def _ends(graph: Graph) -> list[tuple[Ref, str]]:
    """Return what must end in the property of a parameter or buffer, and the node of that."""
    ends = [(ref, graph.parameters[name].node) for name, ref in graph.gradients.items()]
    return ends + [(ref, graph.buffers[name].node) for name, ref in graph.buffer_updates.items()]


_Readers = list[tuple[str, int, tuple[Property, ...]]]
_Reads = dict[Ref, _Readers]


def _reads(
    graph: Graph,
    rules: Mapping[str, tuple[OperatorRule, ...]],
    roots: Mapping[str, _Root],
    number: Mapping[str, int],
    end: int,
) -> _Reads:
    """Return for each tensor that is no view: who reads it, which decision that is, and what each of its rules asks."""
    reads: _Reads = {}

    def ask(ref: Ref, name: str, decision: int, asked: tuple[Property, ...]) -> None:
        root = roots.get(ref.node)
        if root is not None:
            ref, asked = root.ref, tuple(root.of(wanted) for wanted in asked)
        reads.setdefault(ref, []).append((name, decision, asked))

    for node in graph.nodes:
        if node.name not in roots:
            for place, ref in enumerate(node.inputs):
                ask(ref, node.name, number[node.name], tuple(rule.inputs[place] for rule in rules[node.name]))
    for ref, leaf in _ends(graph):
        ask(ref, leaf, number[leaf], tuple(rule.outputs[0] for rule in rules[leaf]))
    ask(graph.loss, END, end, (REPLICATED,))
    return reads


def _uses(
    short: Short, reads: _Reads, number: Mapping[str, int], order: Mapping[str, int], values: Mapping[Ref, Value]
) -> list[Use]:  # fmt: skip
    """Return the tensors grouped by who makes and who reads them."""
    leaves = {ref.node for ref in (*short.graph.parameters.values(), *short.graph.buffers.values())}
    uses: dict[tuple[object, ...], Use] = {}
    for ref, readers in _by_pass(short.graph, reads, order):
        late = {name: name in leaves or name == END for name, _, _ in readers}
        made = {name: Reader(decision, asked, late[name]) for name, decision, asked in readers}
        wanted = tuple(dict.fromkeys(Reader(decision, asked, late[name]) for name, decision, asked in readers))
        inside = [name for name in made if name not in leaves and name != END]
        last = max(inside, key=order.__getitem__, default=None)
        key = (number[ref.node], ref.output, frozenset(wanted))
        use = uses.get(key)
        if use is None:
            early = ref.node in leaves
            use = Use(
                decision=number[ref.node], output=ref.output, value=values[ref], readers=wanted, early=early,
                ending=-1 if last is None else wanted.index(made[last]),
            )  # fmt: skip
            uses[key] = use
        use.places.append(order[ref.node])
        use.first.append(min(len(order) if name in leaves else order.get(name, len(order)) for name, _, _ in readers))
        use.last.append(len(order) if last is None else order[last])
        use.weight += short.weight[ref.node]
    return list(uses.values())


def _by_pass(graph: Graph, reads: _Reads, order: Mapping[str, int]) -> Iterator[tuple[Ref, _Readers]]:
    """Yield tensors with who reads them, parameters once for the forward and once for the backward."""
    parameters, loss = set(graph.parameters.values()), order[graph.loss.node]
    for ref, readers in reads.items():
        if ref in parameters:
            backward = [reader for reader in readers if order[reader[0]] > loss]
            forward = [reader for reader in readers if order[reader[0]] <= loss]
            yield from ((ref, some) for some in (forward, backward) if some)
        else:
            yield ref, readers


@record(eq=False)
class DecisionColumns:
    """Rules [R]: `decision` and `rule` name them, and those of a decision start at `first`; `cut` is the place among
    `cuts` of how its work is cut, `held` of how its first result is, -1 for neither.

    Ways [C]: of which `use`, from which property to which (`source`, `target`), and when that must be done (`kind`);
    `calls` is the part of a call that each is, 1 where it is sent alone. `pair` is the place of the size of the call,
    source and target among `pairs`."""

    decision: Ints
    rule: Ints
    first: Ints
    cut: Ints
    held: Ints
    cuts: tuple[Sharded, ...]
    use: Ints
    source: tuple[Property, ...]
    target: tuple[Property, ...]
    kind: Ints
    calls: Floats
    pair: Ints
    pairs: tuple[tuple[float, Property, Property], ...]


@lru_cache(maxsize=8)
def columns(space: Decisions, *, overlap: bool = True) -> DecisionColumns:
    """Return the columns. Without `overlap` every conversion is waited for."""
    rows = [(number, place) for number, decision in enumerate(space.decisions) for place in range(len(decision.rules))]
    counts = np.array([len(decision.rules) for decision in space.decisions])
    cuts: dict[Property | None, int] = {}
    cut, held = [], []
    for decision in space.decisions:
        for rule in decision.rules:
            cut.append(_place(cuts, rule.cut))
            held.append(_place(cuts, rule.outputs[0] if rule.outputs else None))
    pairs: dict[tuple[float, Property, Property], int] = {}
    ways, parts, together = [], [], call_sizes(space.short.graph)
    for number, use in enumerate(space.uses):
        made = list(dict.fromkeys(rule.outputs[use.output] for rule in space.decisions[use.decision].rules))
        for target, kind in _wanted(use):
            for source in made:
                if source != target and possible(source, target):
                    size = whole = float(use.value.size_bytes)
                    if kind != BLOCKING:
                        whole = together.of(_asked_by(space, use), size, source, target, early=use.early)
                    pair = pairs.setdefault((whole, source, target), len(pairs))
                    ways.append((number, source, target, kind, pair))
                    parts.append(size / whole)
    uses, sources, targets, kinds, at = zip(*ways, strict=True) if ways else ((),) * 5
    when = np.array(kinds, dtype=np.int64)
    return DecisionColumns(
        decision=np.array([row[0] for row in rows]),
        rule=np.array([row[1] for row in rows]),
        first=np.cumsum(counts) - counts,
        cut=np.array(cut),
        held=np.array(held),
        cuts=tuple(cut for cut in cuts if isinstance(cut, Sharded)),
        use=np.array(uses, dtype=np.int64),
        source=sources,
        target=targets,
        kind=when if overlap else np.full_like(when, BLOCKING),
        calls=np.array(parts),
        pair=np.array(at, dtype=np.int64),
        pairs=tuple(pairs),
    )


def _asked_by(space: Decisions, use: Use) -> str:
    """Return the node that reads a tensor first where it is early, or makes it."""
    nodes = space.short.graph.nodes
    return nodes[min(use.first[0], len(nodes) - 1) if use.early else use.places[0]].name


def _place(cuts: dict[Property | None, int], held: Property | None) -> int:
    return cuts.setdefault(held, len(cuts)) if isinstance(held, Sharded) else -1


def _wanted(use: Use) -> list[tuple[Property, int]]:
    """Return the properties that are asked for, and when they must be there."""
    soon = dict.fromkeys(asked for reader in use.readers if not reader.at_end for asked in reader.asked)
    late = dict.fromkeys(asked for reader in use.readers if reader.at_end for asked in reader.asked)
    if use.early:
        return [(asked, EARLY) for asked in soon | late]
    return [(asked, BLOCKING) for asked in soon] + [(asked, DEFERRED) for asked in late]
