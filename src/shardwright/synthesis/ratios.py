"""The best shares for a given choice of rules, as a linear program; where to start, and whole units near the best.

Devices of a class have one share of each ratio, so there are few columns: B[ratio, class], the largest share of each
ratio (what padding costs), the largest part that a machine exchanges, the computation of each stage, and the time T. A
stage is what lies between two times at which all devices wait for each other; stages with equal computation are
counted. Rows:

1. Σ over the devices of B = 1 for each ratio, and no share above the largest;             -> `_shares`
2. a stage lasts as long as its computation on each class;                                 -> `_stages`
3. T ≥ stages + what is waited for;                                                        -> `_stages`
4. T ≥ computation before node k + what is waited for + what is deferred from k on;        -> `_behind`
5. what a device holds fits its memory.                                                    -> `_memory`

An all-to-all sends S (1 - S) of a machine with share S, which no linear program can take; 1 - S is that of the shares
before. The shares found are priced anew, so a bad guess costs a step, not the truth.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.records import record
from shardwright.synthesis.choice import Choice
from shardwright.synthesis.decisions import BLOCKING, DEFERRED, EARLY, Decisions
from shardwright.synthesis.graph import COMPUTE, FEATURES, STATE, Sharded
from shardwright.synthesis.linear import LinearRows, solve
from shardwright.synthesis.machines import Machines
from shardwright.synthesis.memory import alone, held_by
from shardwright.synthesis.prices import Prices, RankShares, alone_seconds, fixed_seconds

POINTS = 12  # nodes k of row 4


@record(kw_only=False)
class _Layout:
    """Where the columns stand: shares of ratio r and class d at r · classes + d, then the largest of each ratio, then
    the largest exchange of each, then the stages, then T."""

    ratios: tuple[str, ...]
    classes: int
    stages: int

    @property
    def largest(self) -> int:
        return len(self.ratios) * self.classes

    @property
    def exchanged(self) -> int:
        return self.largest + len(self.ratios)

    @property
    def first_stage(self) -> int:
        return self.exchanged + len(self.ratios)

    @property
    def time(self) -> int:
        return self.first_stage + self.stages

    @property
    def width(self) -> int:
        return self.time + 1


@record(kw_only=False)
class _Affine:
    """What happens at each node of the short graph as a function of the columns: computation by class [N, D, ratios]
    and without a share [N, D]; what is sent, by kind [3, N, columns] and fixed [3, N]."""

    part: Floats
    whole: Floats
    sent: Floats
    fixed: Floats


def best_shares(
    space: Decisions, choice: Choice, net: Machines, shares: RankShares, costs: Prices
) -> RankShares | None:
    """Return the shares that the choice is fastest with, None if none fit the memory."""
    ratios = tuple(shares.exact)
    flow = _affine(space, choice, net, shares, costs, _Layout(ratios, len(net.classes), 0))
    weights = np.array(space.weights, dtype=np.float64)
    stages = _distinct(flow, weights)
    layout = _Layout(ratios, len(net.classes), len(stages))
    rows = LinearRows()
    _shares(rows, layout, net, shares)
    _stages(rows, layout, flow, weights, stages)
    _behind(rows, layout, flow, weights)
    _memory(rows, layout, space, choice, net, shares)
    upper = np.ones(layout.width)
    upper[layout.first_stage :] = np.inf
    objective = np.zeros(layout.width)
    objective[layout.time] = 1.0
    solution = solve(objective, rows, lower=np.zeros(layout.width), upper=upper)
    if solution.status != "optimal":
        return None
    solved = np.maximum(solution.values[: layout.largest], 0.0).reshape(len(ratios), -1)
    exact = {}
    for name, row in zip(ratios, solved, strict=True):
        full = np.zeros(net.ranks)
        for share, (_, ranks) in zip(row, net.classes, strict=True):
            full[ranks] = share
        exact[name] = tuple((full / full.sum()).tolist())
    return RankShares(exact=exact)


def _affine(
    space: Decisions, choice: Choice, net: Machines, shares: RankShares, costs: Prices, layout: _Layout
) -> _Affine:
    count, classes, ratios = len(space.order), len(net.classes), layout.ratios
    part, whole = np.zeros((count, classes, len(ratios))), np.zeros((count, classes))
    sent, fixed = np.zeros((3, count, layout.first_stage)), np.zeros((3, count))
    for place, decision in enumerate(space.order):
        if decision < 0:
            continue
        rule = space.decisions[decision].rules[int(choice.rules[decision])]
        row = int(costs.columns.first[decision]) + int(choice.rules[decision])
        fixed[BLOCKING, place] += costs.sends[row]
        if rule.cut is None:
            whole[place] = costs.compute[row]
        else:
            part[place, :, ratios.index(rule.cut.ratio)] = alone_seconds(space, net)[decision]
            whole[place] = fixed_seconds(space, net)[decision]
    for way in np.flatnonzero(choice.sent > 0.5).tolist():
        use, kind = space.uses[costs.columns.use[way]], int(costs.columns.kind[way])
        places = [min(first, count - 1) for first in use.first] if kind == EARLY else use.places
        column, base = _column(way, net, shares, costs, layout)
        for place in places:
            if column < 0:
                fixed[kind, place] += costs.seconds[way]
            else:
                sent[kind, place, column] += costs.seconds[way] / base
    return _Affine(part, whole, sent, fixed)


def _column(way: int, net: Machines, shares: RankShares, costs: Prices, layout: _Layout) -> tuple[int, float]:
    """Return the column that a conversion's time is proportional to, and that column's value; -1 if it is fixed."""
    ways = costs.columns
    held = [side for side in (ways.source[way], ways.target[way]) if isinstance(side, Sharded)]
    if not held:
        return -1, 1.0
    number, row = layout.ratios.index(held[0].ratio), np.asarray(shares.exact[held[0].ratio])
    if costs.method[way].endswith("padded"):
        return layout.largest + number, float(row.max())
    of = np.bincount(net.machine_of, weights=row)
    exchanged = float((of * (1 - of)).max())
    if costs.method[way] == "all_to_all" and exchanged > 0:
        return layout.exchanged + number, exchanged
    return -1, 1.0


def _distinct(flow: _Affine, weights: Floats) -> list[tuple[tuple[float, ...], float]]:
    """Return the computation of each stage, flat over classes and ratios (the last entry of a class is what is not
    divided), with how often it occurs."""
    count, classes, ratios = flow.part.shape
    both = np.concatenate([flow.part, flow.whole[:, :, None]], axis=2).reshape(count, -1)
    waits = (flow.fixed[BLOCKING] > 0) | (flow.sent[BLOCKING].sum(axis=1) > 0)
    summed: dict[tuple[float, ...], float] = {}
    total = np.zeros(classes * (ratios + 1))
    weight = 1.0
    for place in range(count):
        if weights[place] != weight and total.any():
            _count(summed, total, weight)
            total = np.zeros_like(total)
        weight = float(weights[place])
        total = total + both[place]
        if waits[place]:
            _count(summed, total, weight)
            total = np.zeros_like(total)
    _count(summed, total, weight)
    return list(summed.items())


def _count(weights: dict[tuple[float, ...], float], total: Floats, weight: float) -> None:
    key = tuple(total.tolist())
    weights[key] = weights.get(key, 0.0) + weight


def _shares(rows: LinearRows, layout: _Layout, net: Machines, shares: RankShares) -> None:
    counts = [len(ranks) for _, ranks in net.classes]
    machines = [machine.gpus for machine in net.machines]
    for number, name in enumerate(layout.ratios):
        start = number * layout.classes
        rows.add({start + kind: float(count) for kind, count in enumerate(counts)}, 1.0, 1.0)
        of = np.bincount(net.machine_of, weights=np.asarray(shares.exact[name]))
        for kind, (_, ranks) in enumerate(net.classes):
            rows.add({layout.largest + number: 1.0, start + kind: -1.0}, low=0.0)
            machine = int(net.machine_of[ranks[0]])
            left = float(machines[machine] * (1 - of[machine]))
            rows.add({layout.exchanged + number: 1.0, start + kind: -left}, low=0.0)


def _stages(
    rows: LinearRows, layout: _Layout, flow: _Affine, weights: Floats, stages: list[tuple[tuple[float, ...], float]]
) -> None:
    width = len(layout.ratios) + 1
    for number, (work, _) in enumerate(stages):
        for kind in range(layout.classes):
            parts = work[kind * width : kind * width + width]
            terms = {ratio * layout.classes + kind: -value for ratio, value in enumerate(parts[:-1]) if value}
            rows.add({layout.first_stage + number: 1.0, **terms}, low=parts[-1])
    waited = weights @ flow.sent[BLOCKING]
    row = np.zeros(layout.width)
    row[layout.time] = 1.0
    row[: layout.first_stage] -= waited
    row[layout.first_stage : layout.time] = [-count for _, count in stages]
    rows.add_dense(row, low=float(weights @ flow.fixed[BLOCKING]))


def _behind(rows: LinearRows, layout: _Layout, flow: _Affine, weights: Floats) -> None:
    """Add row 4 at nodes after which something is deferred."""
    later = (flow.fixed[DEFERRED] > 0) | (flow.sent[DEFERRED].sum(axis=1) > 0)
    places = np.flatnonzero(later & (weights == 1))
    waited, fixed = weights @ flow.sent[BLOCKING], float(weights @ flow.fixed[BLOCKING])
    for place in places[:: -max(1, len(places) // POINTS)].tolist():
        before, after = weights[: place + 1], weights[place:]
        for kind in range(layout.classes):
            row = np.zeros(layout.width)
            row[layout.time] = 1.0
            row[: layout.first_stage] -= waited + after @ flow.sent[DEFERRED, place:]
            compute = before @ flow.part[: place + 1, kind]
            for ratio in range(len(layout.ratios)):
                row[ratio * layout.classes + kind] -= compute[ratio]
            least = fixed + float(before @ flow.whole[: place + 1, kind] + after @ flow.fixed[DEFERRED, place:])
            rows.add_dense(row, low=least)


def _memory(
    rows: LinearRows, layout: _Layout, space: Decisions, choice: Choice, net: Machines, shares: RankShares
) -> None:
    """Add row 5 for the moments of which no other has more of all that is whole, shared by a ratio and padded."""
    if not np.isfinite(net.limits).any():
        return
    held = held_by(space, choice.rules, net, shares)
    ratios = [layout.ratios.index(ratio) for ratio, _ in held.cuts]
    terms = np.zeros((len(held.whole), 1 + 2 * len(layout.ratios)))
    terms[:, 0] = held.whole
    for cut, ratio in enumerate(ratios):
        terms[:, 1 + ratio] += held.part[:, cut]
        terms[:, 1 + len(layout.ratios) + ratio] += net.ranks * held.padded[:, cut]
    for moment in undominated(terms):
        whole, part, padded = moment[0], moment[1 : 1 + len(layout.ratios)], moment[1 + len(layout.ratios) :]
        for kind, limit in enumerate(net.limits):
            if np.isfinite(limit):
                row = {ratio * layout.classes + kind: float(size / limit) for ratio, size in enumerate(part)}
                row |= {layout.largest + ratio: float(size / limit) for ratio, size in enumerate(padded)}
                rows.add(row, high=1.0 - float(whole / limit))


def undominated(terms: Floats) -> Floats:
    """Return the rows of which no other row is as large in all columns."""
    left = np.unique(np.maximum(terms, 0.0), axis=0)  # sums of what came and went may end a little below nothing
    left = left[np.argsort(-left.sum(axis=1), kind="stable")]
    kept = []
    while len(left):
        kept.append(left[0])
        left = left[1:][(left[1:] > left[0] * (1 + 1e-9)).any(axis=1)]
    return np.array(kept)


def starts(space: Decisions, net: Machines) -> list[RankShares]:
    """Return shares proportional to speed, even, half way between, and the fastest kind of devices alone; one if all
    devices are alike. Those at work have room together for what one would hold alone, but for the first two."""
    even, fastest = net.even(), net.flops_per_second >= net.flops_per_second.max()
    half = np.mean([net.proportional(), even], axis=0)
    alone_at_work = fastest / fastest.sum()
    rows = [net.proportional(), even, tuple(half.tolist()), tuple(alone_at_work.tolist())]
    limits = np.array([device.memory_bytes for device in net.device_of])
    whole = float(alone(space).max())
    return [
        RankShares(exact={COMPUTE: row, FEATURES: row, STATE: _state(space, np.array(row), limits, whole)})
        for row in dict.fromkeys(rows)
        if min(row) > 0 or whole <= limits[np.array(row) > 0].sum()
    ]


def _state(space: Decisions, rows: Floats, limits: Floats, whole: float) -> tuple[float, ...]:
    """Return shares of the state as even as memory allows beside the rows' part of all else: Σ min(level, room) = 1."""
    graph = space.short.graph
    nodes = graph.by_name()
    bytes_ = space.state.bytes + space.state.gradient_bytes
    held = bytes_ * sum(
        space.short.weight[ref.node] * nodes[ref.node].outputs[0].size_bytes for ref in graph.parameters.values()
    )
    room = np.maximum(limits - max(whole - held, 0.0) * rows, 0.0) / max(held, 1.0)
    if room.sum() < 1.0 or room.min() >= 1.0 / len(room):
        return tuple([1.0 / len(room)] * len(room))
    order = np.sort(room)
    before = np.concatenate([[0.0], np.cumsum(order)[:-1]])
    levels = (1.0 - before) / np.arange(len(order), 0, -1)
    level = levels[np.argmax(levels <= order)]
    return tuple(np.minimum(room, level).tolist())


def by_memory(net: Machines) -> RankShares:
    """Return shares of rows and of state in proportion to the memory of the devices."""
    memory = np.array([device.memory_bytes for device in net.device_of])
    row = tuple((memory / memory.sum()).tolist()) if np.isfinite(memory).all() else net.even()
    return RankShares(exact={COMPUTE: row, STATE: row})


def rounded(shares: Floats, units: int) -> Ints:
    """Return whole units that add up to `units` and whose largest overrun, units / (share · all units), is the least.

    Largest remainders first, then units move from the rank that overruns most to the one that would overrun least,
    while that helps. A rank without a share gets nothing.
    """
    exact = shares / shares.sum() * units
    held = np.floor(exact + 1e-9).astype(np.int64)
    left = units - int(held.sum())
    order = np.lexsort((np.arange(len(shares)), -(exact - held)))
    held[order[:left]] += 1
    cost = np.divide(1.0, shares, out=np.full(len(shares), np.inf), where=shares > 0)
    for _ in range(units):
        over = np.multiply(held, cost, out=np.zeros(len(shares)), where=held > 0)
        after = (held + 1) * cost
        most, least = int(np.argmax(over)), int(np.argmin(after))
        if after[least] >= over[most] * (1 - 1e-12) or most == least:
            break
        held[most] -= 1
        held[least] += 1
    return np.asarray(held, dtype=np.int64)
