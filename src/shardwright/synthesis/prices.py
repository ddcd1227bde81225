"""What each rule and each conversion costs on given machines at given shares, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache

import numpy as np

from shardwright.arrays import Bools, Floats
from shardwright.records import record
from shardwright.synthesis.decisions import END, Decision, DecisionColumns, Decisions, columns
from shardwright.synthesis.graph import COMPUTE, FREE, Sharded, Sizes, flops, product, traffic_bytes
from shardwright.synthesis.machines import Machines, all_reduce, conversion


@record
class RankShares:
    """The share of each rank by ratio, and where they are rounded, the units of each by ratio and number of units. A
    ratio that is not there is that of the rows."""

    exact: Mapping[str, tuple[float, ...]]
    sizes: Sizes = field(default_factory=dict)

    def of(self, held: Sharded) -> Floats:
        """Return the shares of a sharded tensor, [ranks]."""
        units = self.sizes.get((held.ratio, held.units))
        return np.asarray(self.row(held.ratio)) if units is None else np.asarray(units) / held.units

    def row(self, ratio: str) -> tuple[float, ...]:
        return self.exact.get(ratio, self.exact[COMPUTE])

    def by_class(self, held: Sharded, net: Machines) -> Floats:
        """Return the largest share of a device of each class, [D]."""
        row = self.of(held)
        return np.array([row[ranks].max() for _, ranks in net.classes])


@record
class Prices:
    """What rules cost at `shares` on `net`: `compute` are seconds by rule and class of devices [R, D], `sends` of what
    is sent inside an operator [R], `state` bytes of parameters, of what an optimizer keeps of them and of gradients,
    which are all there at the end, for all occurrences [R, D]; `seconds` and `method` of one conversion by each way
    [C]."""

    net: Machines
    shares: RankShares
    columns: DecisionColumns
    compute: Floats
    sends: Floats
    state: Floats
    seconds: Floats
    method: tuple[str, ...]


def prices(space: Decisions, net: Machines, shares: RankShares, *, overlap: bool = True) -> Prices:
    """Return the prices. Without `overlap` every conversion is waited for."""
    named = columns(space, overlap=overlap)
    part = np.array([*(shares.by_class(cut, net) for cut in named.cuts), np.ones(len(net.classes))])
    sent = [conversion(net, size, source, target, shares.of) for size, source, target in named.pairs]
    return Prices(
        net=net,
        shares=shares,
        columns=named,
        compute=(alone_seconds(space, net)[named.decision] * part[named.cut])
        + fixed_seconds(space, net)[named.decision],
        sends=_sends(space, net),
        state=_state_bytes(space)[:, None] * part[named.held],
        seconds=named.calls * np.array([message.seconds for message in sent])[named.pair],
        method=tuple(sent[pair].method for pair in named.pair.tolist()),
    )


@lru_cache(maxsize=8)
def alone_seconds(space: Decisions, net: Machines) -> Floats:
    """Return the seconds of each decision's whole operation on each class of devices [decisions, D]."""
    return np.array([seconds_of(decision, *net.rates) for decision in space.decisions])


@lru_cache(maxsize=8)
def fixed_seconds(space: Decisions, net: Machines) -> Floats:
    """Return what each decision's operation takes however small its part, on each class of devices [decisions, D]."""
    runs = np.array([decision.node.op not in FREE and decision.node.op != END for decision in space.decisions])
    return np.outer(runs, [machine.device.operator_seconds for machine, _ in net.classes])


def seconds_of(decision: Decision, speed: Floats, pace: Floats) -> Floats:
    """Return the seconds of the whole operation on each class of devices [D]: a roofline for products, the traffic for
    all else, at least an operation an element."""
    work, moved = flops(decision.node, decision.operands), traffic_bytes(decision.node, decision.operands)
    if product(decision.node):
        return np.maximum(work / speed, moved / pace)
    return work / speed + moved / pace


@lru_cache(maxsize=8)
def _sends(space: Decisions, net: Machines) -> Floats:
    return np.array(
        [sum(all_reduce(net, size).seconds for size in r.sends) for decision in space.decisions for r in decision.rules]
    )


@lru_cache(maxsize=8)
def _state_bytes(space: Decisions) -> Floats:
    """Return what a parameter and its state take where they are whole, for each rule [R]."""
    nodes = space.decisions[:-1]
    times = space.state.bytes + space.state.gradient_bytes
    sizes = [
        times * decision.weight * decision.node.outputs[0].size_bytes * (decision.node.op == "parameter")
        for decision in nodes
    ]
    return np.append(np.repeat(sizes, [len(decision.rules) for decision in nodes]), 0.0)


def slower(compute: Floats) -> Bools:
    """Return the classes [D] that no other class outlasts under every rule."""
    count = compute.shape[1]
    kept = np.ones(count, dtype=bool)
    for kind in range(count):
        others = np.flatnonzero(kept)
        kept[kind] = not any(
            other != kind and np.all(compute[:, kind] <= compute[:, other] * (1 + 1e-12)) for other in others
        )
    return kept
