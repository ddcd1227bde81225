"""What would make a program fit where none does: more devices, or the optimizer's moments in host memory."""

from __future__ import annotations

from dataclasses import replace

from shardwright.rows import holding
from shardwright.synthesis.baselines import Rules, everything
from shardwright.synthesis.best_rules import best
from shardwright.synthesis.decisions import ADAM, ParameterState, decisions
from shardwright.synthesis.graph import Graph
from shardwright.synthesis.machines import DeviceMachine, Machines
from shardwright.synthesis.prices import prices
from shardwright.synthesis.ratios import by_memory

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
