"""A time that no program is below at any ratio, under the same cost function.

The ratios are cut into boxes: in each, a device of every class has between a least and a largest share. What rules and
conversions cost at least anywhere in a box makes a linear relaxation; the box with the least bound is halved, again and
again (spatial branch and bound). Devices of a class share alike. Memory is left out, so the bound holds with any.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Floats
from shardwright.synthesis.best_rules import relaxed
from shardwright.synthesis.decisions import Decisions, columns
from shardwright.synthesis.graph import COMPUTE, FEATURES, STATE, Property, Replicated, Sharded
from shardwright.synthesis.machines import Machines, Sent, conversion, gather_grouped, gather_padded
from shardwright.synthesis.prices import RankShares, alone_seconds, fixed_seconds, prices

RATIOS = (COMPUTE, FEATURES, STATE)
HALVED = 2  # ratios: that of state stays as wide as it is, for it costs least where it is even


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """The least and the largest share of a device of each class, each [ratios, classes]."""

    low: Floats
    high: Floats

    def halves(self, counts: Floats) -> tuple[Box, Box]:
        """Return the box halved where what all devices of a class have is widest."""
        width = ((self.high - self.low) * counts)[:HALVED]
        place = divmod(int(np.argmax(width)), width.shape[1])
        low, high = self.low.copy(), self.high.copy()
        low[place] = high[place] = (low[place] + high[place]) / 2
        return _tight(self.low, high, counts), _tight(low, self.high, counts)


def _tight(low: Floats, high: Floats, counts: Floats) -> Box:
    """Return the part of a box in which shares add up to one."""
    least, most = low * counts, high * counts
    above = 1.0 - (most.sum(axis=1, keepdims=True) - most)
    below = 1.0 - (least.sum(axis=1, keepdims=True) - least)
    return Box(np.maximum(least, above) / counts, np.minimum(most, below) / counts)


def least_seconds(space: Decisions, net: Machines, *, boxes: int) -> float:
    """Return a time that no program is below, after as many boxes."""
    counts = np.array([float(len(ranks)) for _, ranks in net.classes])
    everything = Box(np.zeros((len(RATIOS), len(counts))), np.tile(1.0 / counts, (len(RATIOS), 1)))
    waiting = [(least_in(space, net, everything), 0, everything)]
    while len(waiting) < boxes:
        before, _, box = heapq.heappop(waiting)
        for side, half in enumerate(box.halves(counts)):
            bound = max(before, least_in(space, net, half))
            heapq.heappush(waiting, (bound, 2 * len(waiting) + side, half))
    return waiting[0][0]


def least_in(space: Decisions, net: Machines, box: Box) -> float:
    """Return a time that no program with shares in the box is below.

    Beside the classes stands one more, their mean weighted by speed: a device that is slower than it waits less."""
    named, alone, fixed = columns(space), alone_seconds(space, net), fixed_seconds(space, net)
    part = np.array([*(box.low[RATIOS.index(cut.ratio)] for cut in named.cuts), np.ones(len(net.classes))])
    weight = net.rates[0] / net.flops_per_second.sum()
    counts = np.array([len(ranks) for _, ranks in net.classes])
    mean = np.where(named.cut < 0, (alone @ (weight * counts))[named.decision], (alone * weight).min(1)[named.decision])
    sent = [_least_sent(net, box, *pair) for pair in named.pairs]
    seconds = named.calls * np.array([one.seconds for one in sent])[named.pair]
    mean += (fixed @ (weight * counts))[named.decision]
    compute = np.column_stack([alone[named.decision] * part[named.cut] + fixed[named.decision], mean])
    costs = prices(space, net, RankShares(exact={COMPUTE: net.even()}))
    return relaxed(
        space, replace(costs, compute=compute, seconds=seconds, state=np.zeros_like(costs.state))
    ).bound_seconds


def _least_sent(net: Machines, box: Box, size: float, source: Property, target: Property) -> Sent:
    """Return what a conversion takes at least."""
    even = conversion(net, size, source, target, lambda _: np.array(net.even()))
    sides = [one for one in (source, target) if isinstance(one, Sharded)]
    if not sides or isinstance(source, Replicated):
        return even
    low, high = (side[[RATIOS.index(one.ratio) for one in sides]] for side in (box.low, box.high))
    if len(sides) == 2:
        seconds = even.latency_seconds + size * _least_exchanged(net, sides, low, high)
        return Sent(even.method, seconds, even.latency_seconds)
    at_work = sum(len(ranks) for (_, ranks), least in zip(net.classes, low[0], strict=True) if least > 0)
    fewest = max(at_work, min(len(ranks) for _, ranks in net.classes))
    padded = gather_padded(net, size, np.array([max(low.max(), 1 / net.ranks)]))
    return min(padded, gather_grouped(net, size, np.ones(fewest)), key=lambda one: one.seconds)


def _least_exchanged(net: Machines, sides: list[Sharded], low: Floats, high: Floats) -> float:
    """Return the seconds that a byte of an all-to-all takes at least; none from one ratio to another along one
    dimension."""
    old, new = sides
    if old.dim == new.dim and old.outer == new.outer == 1:
        return 0.0
    gpus = np.array([machine.gpus for machine, _ in net.classes])
    link = np.array([machine.link_bytes_per_second for machine, _ in net.classes])
    inside = low[0] * low[1] * (gpus - 1) / link
    of, most = low * gpus, np.minimum(high * gpus, 1.0)
    if old.ratio == new.ratio:
        between = np.minimum(of[0] * (1 - of[0]), most[0] * (1 - most[0]))
    else:
        between = np.maximum(of[0] * (1 - most[1]), of[1] * (1 - most[0]))
    return float(max(inside.max(), between.max() / net.network_bytes_per_second if len(net.machines) > 1 else 0.0))
