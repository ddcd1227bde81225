"""What others would run, as rules that a search may take: the same cost decides among them.

* data parallel: every operator cut along the batch, where it can be, parameters replicated, gradients all-reduced;
* uneven FSDP: the same with parameters and their state stored by a ratio of their own;
* HAP's rules: data parallel, layers split by their output features or channels, and sufficient factors. Its published
  code has no split along what a product sums over, none of heads and none of the vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from shardwright.arrays import Bools
from shardwright.synthesis.decisions import Decision, Decisions
from shardwright.synthesis.graph import COMPUTE, STATE, Replicated, product
from shardwright.synthesis.prices import Prices
from shardwright.synthesis.rules.signature import OperatorRule

Rules: TypeAlias = Callable[[Decisions, Prices], Bools]


def batch_of(space: Decisions) -> int:
    """Return the rows of the batch: the first dimension of most inputs."""
    graph = space.short.graph
    nodes = graph.by_name()
    shapes = [nodes[ref.node].outputs[0].shape for ref in graph.inputs.values()]
    return Counter(shape[0] for shape in shapes if shape).most_common(1)[0][0]


def by_rows(rule: OperatorRule, rows: int) -> bool:
    """Return whether a rule cuts its operator along the batch."""
    return rule.cut is not None and rule.cut.units == rows and rule.cut.ratio == COMPUTE


def everything(space: Decisions, costs: Prices) -> Bools:
    """Return all rules [R]."""
    return np.ones(len(costs.compute), dtype=bool)


def data_parallel(space: Decisions, costs: Prices) -> Bools:
    """Return the rules of data parallelism [R]."""
    rows = batch_of(space)
    return _allowed(space, costs, lambda decision, rule: _data_parallel(decision, rule, rows))


def fsdp(space: Decisions, costs: Prices) -> Bools:
    """Return the rules of data parallelism with sharded parameters [R]; biases and norms may stay whole."""
    rows = batch_of(space)

    def allowed(decision: Decision, rule: OperatorRule) -> bool:
        if decision.node.op == "parameter":
            return rule.name == "state" or len(decision.node.outputs[0].shape) < 2
        return _data_parallel(decision, rule, rows)

    return _allowed(space, costs, allowed)


def hap(space: Decisions, costs: Prices) -> Bools:
    """Return HAP's rules [R]: a weight is whole or split along its first dimension, its outputs; no forward product is
    cut along what it sums over, nothing along heads or classes."""
    rows = batch_of(space)
    middle = {number: place for place, number in reversed(list(enumerate(space.order)))}

    def allowed(decision: Decision, rule: OperatorRule) -> bool:
        forward = middle.get(numbers[decision.name], -1) < space.loss
        if rule.cut is None or by_rows(rule, rows):
            return rule.name != "sum" or decision.node.op in SUMS
        if decision.node.op == "parameter":
            return rule.cut.dim == 0 and rule.cut.ratio != STATE
        if decision.node.op in ("cross_entropy", "cross_entropy_backward", "embedding", "embedding_dense_backward"):
            return rule.name == "d"
        if rule.cut.outer > 1 or decision.node.op.startswith("attention"):
            return False
        return not (forward and product(decision.node) and rule.name in ("k", "i"))

    numbers = {known.name: number for number, known in enumerate(space.decisions)}
    return _allowed(space, costs, allowed)


STRATEGIES: dict[str, Rules] = {
    "any": everything, "uneven-fsdp": fsdp, "data-parallel": data_parallel, "hap": hap
}  # fmt: skip
SUMS = frozenset(("add.Tensor", "sum.dim_IntList", "view", "t", "permute", "stack", "unbind.int"))


def _data_parallel(decision: Decision, rule: OperatorRule, rows: int) -> bool:
    if decision.node.op in ("parameter", "buffer"):
        return isinstance(rule.outputs[0], Replicated)
    if rule.cut is None:
        return not (product(decision.node) and any(by_rows(other, rows) for other in decision.rules))
    return by_rows(rule, rows)


def _allowed(space: Decisions, costs: Prices, test: Callable[[Decision, OperatorRule], bool]) -> Bools:
    pairs = zip(costs.columns.decision.tolist(), costs.columns.rule.tolist(), strict=True)
    return np.array([test(space.decisions[one], space.decisions[one].rules[rule]) for one, rule in pairs])
