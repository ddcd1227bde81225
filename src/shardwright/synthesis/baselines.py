"""What others would run, as rules that a search may take: the same cost decides among them; and what
would make a program fit where none does: more devices, or the optimizer's moments in host memory. The others:

* data parallel: every operator cut along the batch, where it can be, parameters replicated, gradients all-reduced;
* uneven FSDP: the same with parameters and their state stored by a ratio of their own;
* HAP's rules: data parallel, layers split by their output features or channels, and sufficient factors. Its published
  code has no split along what a product sums over, none of heads and none of the vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from shardwright.arrays import Bools
from shardwright.rows import holding
from shardwright.synthesis.best_rules import best
from shardwright.synthesis.decisions import ADAM, Decision, Decisions, ParameterState, decisions
from shardwright.synthesis.graph import COMPUTE, STATE, Graph, Replicated, product
from shardwright.synthesis.machines import DeviceMachine, Machines
from shardwright.synthesis.prices import Prices, prices
from shardwright.synthesis.ratios import by_memory
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


WITHOUT_MOMENTS = ParameterState(bytes=1.0)
MOST_DEVICES = 256  # more are not proposed


def remedies(graph: Graph, net: Machines, rules: Rules = everything) -> str:
    """Return in words what a program of `rules` lacks and what would help; each remedy named was found to fit."""
    nodes = graph.by_name()
    parameters = sum(nodes[ref.node].outputs[0].size_bytes for ref in graph.parameters.values())
    state = (ADAM.bytes + ADAM.gradient_bytes) * parameters
    there = sum(machine.gpus * machine.device.memory_bytes for machine in net.machines)
    lacking = (
        f"parameters, gradients and optimizer state take {state / 2**30:.3g} GiB of the {there / 2**30:.3g} GiB of all "
        "devices, and activations the rest"
    )
    more = more_devices(graph, net, rules)
    helps = holding(
        (rules is not everything and fits(graph, net), "a program of any rules"),
        (fits(graph, net, WITHOUT_MOMENTS, rules), "the optimizer's moments in host memory"),
        (more, f"{more} more {_roomiest(net).device.name}"),
    )
    if not helps:
        return f"{lacking}: use a smaller batch; {MOST_DEVICES} more {_roomiest(net).device.name} would not do"
    return f"{lacking}: it would fit with {', or with '.join(helps)}; or use a smaller batch"


def more_devices(graph: Graph, net: Machines, rules: Rules = everything) -> int:
    """Return the least number of devices, each a machine of its own and of the kind with the most memory, with which a
    program fits; 0 if `MOST_DEVICES` do not do."""
    few, many = 0, 1
    while not fits(graph, _with(net, many), rules=rules):
        few, many = many, many * 2
        if many > MOST_DEVICES:
            return 0
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if fits(graph, _with(net, middle), rules=rules) else (middle, many)
    return many


def fits(graph: Graph, net: Machines, state: ParameterState = ADAM, rules: Rules = everything) -> bool:
    """Return whether some program of `rules` is found that fits."""
    space = decisions(graph, ranks=net.ranks, state_ratio=True, state=state)
    costs = prices(space, net, by_memory(net))
    return best(space, costs, allowed=rules(space, costs), branch=False) is not None


def _roomiest(net: Machines) -> DeviceMachine:
    return max(net.machines, key=lambda machine: machine.device.memory_bytes)


def _with(net: Machines, count: int) -> Machines:
    return replace(net, machines=(*net.machines, *[replace(_roomiest(net), gpus=1)] * count))
