"""Which cuts of each operator and tensor of a graph are worth a rule.

A cut starts at an axis along which work is done (an anchor) or at the rows of an input, and is followed through all
operators that can carry it, forward and backward. So each family of cuts is one way to shard a whole part of the model:
by batch, by head, by the hidden features of one layer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwright.records import record
from shardwright.synthesis.graph import COMPUTE, FEATURES, Graph, Node, Ref, Sharded
from shardwright.synthesis.rules.signature import (
    Cut,
    OperatorRule,
    Signature,
    cut_rule,
    linear_rules,
    placed,
    replicated,
    seen,
)
from shardwright.synthesis.rules.table import LEAVES, signature


@dataclass(slots=True)
class Family:
    """Cuts that lead to each other, all in the proportions of one ratio."""

    ratio: str = FEATURES
    cuts: set[tuple[str, Cut]] = field(default_factory=set)
    tensors: set[tuple[Ref, Sharded]] = field(default_factory=set)


@record
class Choices:
    """The rules of each node by name, the first of them "replicated", and the nodes whose operator has no row."""

    rules: Mapping[str, tuple[OperatorRule, ...]]
    unknown: tuple[str, ...]


@record(kw_only=False)
class _Field:
    """A graph with signatures, and who reads each tensor."""

    nodes: Mapping[str, Node]
    signatures: Mapping[str, Signature]
    readers: Mapping[Ref, list[str]]


def choices(graph: Graph, ranks: int = 2) -> Choices:
    """Return the rules among which the search chooses, for each node of `graph`. Rows of inputs aside, nothing is cut
    into fewer units than there are `ranks`: most ranks would idle."""
    values = graph.values()
    signatures, readers = {}, defaultdict(list)
    for node in graph.nodes:
        made = signature(node, tuple(values[ref] for ref in node.inputs))
        if made is not None:
            signatures[node.name] = made
        for ref in dict.fromkeys(node.inputs):
            readers[ref].append(node.name)
    where = _Field(graph.by_name(), signatures, readers)
    kept = _useful(_families(where, graph, ranks), where)
    cuts: dict[str, list[tuple[Cut, str]]] = defaultdict(list)
    for family in kept:
        for name, cut in sorted(family.cuts, key=lambda pair: (pair[0], pair[1].axis, pair[1].outer, pair[1].units)):
            cuts[name].append((cut, family.ratio))
    rules = {node.name: _rules(node, signatures.get(node.name), cuts[node.name]) for node in graph.nodes}
    return Choices(rules=rules, unknown=tuple(node.name for node in graph.nodes if node.name not in signatures))


def _rules(node: Node, signature: Signature | None, cuts: list[tuple[Cut, str]]) -> tuple[OperatorRule, ...]:
    whole = replicated(node)
    if signature is None:
        return (whole,)
    return (whole, *(cut_rule(signature, cut, ratio) for cut, ratio in cuts), *linear_rules(signature))


def _families(where: _Field, graph: Graph, ranks: int) -> list[Family]:
    """Return the families of all seeds, in the order of the nodes."""
    inputs = {ref.node for ref in graph.inputs.values()}
    families: list[Family] = []
    done: set[tuple[str, Cut]] = set()
    for name, of_node in where.signatures.items():
        axes = [(axis, max(2, ranks), FEATURES) for axis in sorted(of_node.anchors)]
        for axis, least, ratio in axes + [("0", 2, COMPUTE)] * (name in inputs):
            seed = (name, Cut(axis, of_node.sizes.get(axis, 1)))
            if seed[1].units >= least and seed not in done:
                family = _follow(seed, where, ratio)
                done |= family.cuts
                families.append(family)
    return families


def _follow(seed: tuple[str, Cut], where: _Field, ratio: str) -> Family:
    """Return everything that a cut leads to."""
    family = Family(ratio)
    waiting = [seed]
    while waiting:
        name, cut = waiting.pop()
        of_node = where.signatures.get(name)
        if of_node is None or (name, cut) in family.cuts or not of_node.allows(cut):
            continue
        family.cuts.add((name, cut))
        node = where.nodes[name]
        refs = [*node.inputs, *(Ref(name, number) for number in range(len(node.outputs)))]
        for ref, dims in zip(refs, (*of_node.inputs, *of_node.outputs), strict=True):
            held = placed(dims, of_node.sizes, cut)
            if held is not None and (ref, held) not in family.tensors:
                family.tensors.add((ref, held))
                waiting += _touching(ref, held, where)
    return family


def _touching(ref: Ref, held: Sharded, where: _Field) -> list[tuple[str, Cut]]:
    """Return the cuts of all operators that make or read `ref` which shard it as `held`."""
    touching = []
    for name in dict.fromkeys((ref.node, *where.readers[ref])):
        of_node = where.signatures.get(name)
        if of_node is None:
            continue
        places = [of_node.inputs[number] for number, read in enumerate(where.nodes[name].inputs) if read == ref]
        places += [of_node.outputs[ref.output]] if name == ref.node else []
        for dims in places:
            cut = seen(dims, of_node.sizes, held)
            if cut is not None:
                touching.append((name, cut))
    return touching


def _useful(families: list[Family], where: _Field) -> list[Family]:
    """Return the families without those that cut across the axes of another and reach no parameter: rows of batch times
    sequence, where rows of the batch do."""
    by_tensor: dict[tuple[Ref, int], set[tuple[int, int]]] = defaultdict(set)
    for family in families:
        for ref, held in family.tensors:
            by_tensor[ref, held.dim].add((held.outer, held.units))
    return [
        family
        for family in families
        if any(where.nodes[ref.node].op in LEAVES for ref, _ in family.tensors)
        or not any(
            _inside(finer, (held.outer, held.units))
            for ref, held in family.tensors
            for finer in by_tensor[ref, held.dim]
        )
    ]


def _inside(finer: tuple[int, int], coarse: tuple[int, int]) -> bool:
    """Return whether one cut is that of an axis which makes up part of another's."""
    (outer, units), (wide, many) = finer, coarse
    return units < many and outer % wide == 0 and math.gcd(outer // wide * units, many) == outer // wide * units
