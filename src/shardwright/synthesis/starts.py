"""The shares from which a search starts."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats
from shardwright.synthesis.decisions import Decisions
from shardwright.synthesis.machines import Machines
from shardwright.synthesis.memory import alone
from shardwright.synthesis.prices import RankShares
from shardwright.synthesis.properties import COMPUTE, FEATURES, STATE


def starts(these: Decisions, net: Machines) -> list[RankShares]:
    """Return shares proportional to speed, even, half way between, and the fastest kind of devices alone; one if all
    devices are alike. Those at work have room together for what one would hold alone, but for the first two."""
    even, fastest = net.even(), net.flops_per_second >= net.flops_per_second.max()
    half = np.mean([net.proportional(), even], axis=0)
    alone_at_work = fastest / fastest.sum()
    rows = [net.proportional(), even, tuple(half.tolist()), tuple(alone_at_work.tolist())]
    limits = np.array([device.memory_bytes for device in net.device_of])
    whole = float(alone(these).max())
    return [
        RankShares(exact={COMPUTE: row, FEATURES: row, STATE: _state(these, np.array(row), limits, whole)})
        for row in dict.fromkeys(rows)
        if min(row) > 0 or whole <= limits[np.array(row) > 0].sum()
    ]


def _state(these: Decisions, rows: Floats, limits: Floats, whole: float) -> tuple[float, ...]:
    """Return shares of the state as even as memory allows beside the rows' part of all else: Σ min(level, room) = 1."""
    graph = these.short.graph
    nodes = graph.by_name()
    each = these.state.bytes + these.state.gradient_bytes
    held = each * sum(
        these.short.weight[ref.node] * nodes[ref.node].outputs[0].size_bytes for ref in graph.parameters.values()
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
