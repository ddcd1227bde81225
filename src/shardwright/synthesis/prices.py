"""What each rule and each conversion costs on given machines at given shares, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.synthesis.collectives import Sent, conversion, reduce_flat, reduce_hierarchical
from shardwright.synthesis.decisions import Decision, Decisions, State, Use
from shardwright.synthesis.machines import BUCKET_BYTES, Machines
from shardwright.synthesis.properties import COMPUTE, Property, Replicated, Sharded, Sizes
from shardwright.synthesis.work import flops, product, traffic_bytes

BLOCKING, DEFERRED, EARLY = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The share of each rank by ratio, and where they are rounded, the units of each by ratio and number of units. A
    ratio that is not there is that of the rows."""

    exact: Mapping[str, tuple[float, ...]]
    sizes: Sizes = field(default_factory=dict)

    def of(self, held: Sharded) -> Floats:
        """Return the shares of a sharded tensor, [ranks]."""
        units = self.sizes.get((held.ratio, held.units))
        return np.asarray(self.row(held.ratio)) if units is None else np.asarray(units) / held.units

    def row(self, ratio: str) -> tuple[float, ...]:
        """Return the exact shares of a ratio."""
        return self.exact.get(ratio, self.exact[COMPUTE])

    def by_class(self, held: Sharded, net: Machines) -> Floats:
        """Return the largest share of a device of each class, [D]."""
        row = self.of(held)
        return np.array([row[ranks].max() for _, ranks in net.classes])


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversions:
    """Ways to convert tensors, as columns [C]: of which use, from which property to which, when they need be done, and
    the seconds of one; `ahead` are the seconds where it is sent with others, in a bucket."""

    use: Ints
    source: tuple[Property, ...]
    target: tuple[Property, ...]
    kind: Ints
    seconds: Floats
    method: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.use)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What rules cost at `shares` on `net`: `compute` are seconds by rule and class of devices [R, D], `sends` of what
    is sent inside an operator [R], `state` bytes of parameters, of what an optimizer keeps of them and of gradients,
    which are all there at the end, for all occurrences [R, D]; `decision` and `rule` name the rows."""

    net: Machines
    shares: Shares

    decision: Ints
    rule: Ints
    compute: Floats
    sends: Floats
    state: Floats
    first: Ints
    conversions: Conversions


def prices(these: Decisions, net: Machines, shares: Shares, *, overlap: bool = True) -> Prices:
    """Return the prices. Without `overlap` every conversion is waited for."""
    rows = [(number, place) for number, one in enumerate(these.decisions) for place in range(len(one.rules))]
    counts = np.array([len(one.rules) for one in these.decisions])
    compute, sends, state = [], [], []
    for one in these.decisions:
        seconds = seconds_of(one, *net.rates)
        for rule in one.rules:
            compute.append(seconds * _part(rule.cut, shares, net))
            sends.append(sum(_reduce(net, size).seconds for size in rule.sends))
            state.append(_state(one, rule.outputs, shares, net, these.state))
    return Prices(
        net=net,
        shares=shares,
        decision=np.array([row[0] for row in rows]),
        rule=np.array([row[1] for row in rows]),
        compute=np.array(compute),
        sends=np.array(sends),
        state=np.array(state),
        first=np.cumsum(counts) - counts,
        conversions=_conversions(these, net, shares, overlap=overlap),
    )


def seconds_of(one: Decision, speed: Floats, pace: Floats) -> Floats:
    """Return the seconds of the whole operator on each class of devices [D]: a roofline for products, the traffic for
    all else, at least an operation an element."""
    work, moved = flops(one.node, one.operands), traffic_bytes(one.node, one.operands)
    if product(one.node):
        return np.maximum(work / speed, moved / pace)
    return work / speed + moved / pace


def _part(cut: Sharded | None, shares: Shares, net: Machines) -> Floats | float:
    return 1.0 if cut is None else shares.by_class(cut, net)


def _reduce(net: Machines, size_bytes: float) -> Sent:
    return min(reduce_flat(net, size_bytes), reduce_hierarchical(net, size_bytes), key=lambda one: one.seconds)


def _state(one: Decision, outputs: tuple[Property, ...], shares: Shares, net: Machines, state: State) -> Floats:
    if one.node.op != "parameter":
        return np.zeros(len(net.classes))
    size = (state.bytes + state.gradient_bytes) * one.weight * one.node.outputs[0].size_bytes
    held = outputs[0]
    return size * (shares.by_class(held, net) if isinstance(held, Sharded) else np.ones(len(net.classes)))


def _conversions(these: Decisions, net: Machines, shares: Shares, *, overlap: bool) -> Conversions:
    known: dict[tuple[float, Property, Property], Sent | None] = {}
    found: list[tuple[int, Property, Property, int, float, str]] = []
    for number, use in enumerate(these.uses):
        made = list(dict.fromkeys(rule.outputs[use.output] for rule in these.decisions[use.decision].rules))
        for target, kind in _wanted(use):
            for source in made:
                if source == target:
                    continue
                size = float(use.value.size_bytes)
                key = (size, source, target)
                if key not in known:
                    known[key] = conversion(net, size, source, target, shares.of)
                sent = known[key]
                if sent is not None:
                    bucketed = sent.latency_seconds * max(0.0, 1.0 - size / BUCKET_BYTES) if kind else 0.0
                    found.append(
                        (number, source, target, kind if overlap else BLOCKING, sent.seconds - bucketed, sent.method)
                    )
    columns = list(zip(*found, strict=True)) if found else [()] * 6
    return Conversions(
        use=np.array(columns[0], dtype=np.int64),
        source=columns[1],
        target=columns[2],
        kind=np.array(columns[3], dtype=np.int64),
        seconds=np.array(columns[4], dtype=np.float64),
        method=columns[5],
    )


def _wanted(use: Use) -> list[tuple[Property, int]]:
    """Return the properties that are asked for, and when they must be there."""
    main = dict.fromkeys(asked for reader in use.readers if not reader.side for asked in reader.asked)
    side = dict.fromkeys(asked for reader in use.readers if reader.side for asked in reader.asked)
    if use.early:
        return [(asked, EARLY) for asked in main | side]
    return [(asked, BLOCKING) for asked in main] + [(asked, DEFERRED) for asked in side]


def slower(compute: Floats) -> Bools:
    """Return the classes [D] that no other class outlasts under every rule."""
    count = compute.shape[1]
    kept = np.ones(count, dtype=bool)
    for one in range(count):
        others = np.flatnonzero(kept)
        kept[one] = not any(
            other != one and np.all(compute[:, one] <= compute[:, other] * (1 + 1e-12)) for other in others
        )
    return kept


def free(source: Property, target: Property) -> bool:
    """Return whether the conversion sends nothing."""
    return source == target or isinstance(source, Replicated)
