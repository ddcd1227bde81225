"""The linear program behind a transfer plan.

    min T   over  x_h >= 0  copies of its shard that holding h sends,  0 <= d_k <= 1  part of need k from its own disk
    (1) sum_h x_h + sum_k d_k = n_i           for every shard i that n_i machines need
    (2) sum_h b_h x_h <= T up_m               over the holdings of machine m
    (3) sum_h b_h x_h + sum_k b_k d_k <= T disk_m    over what machine m holds on disk
    (4) a_m - sum_k b_k d_k <= T down_m       a_m: all that machine m needs and has not in memory, the cloud's too
    (5) T >= the seconds of what has no choice

Sources of a shard are not told apart by whom they serve: any split of the copies over the needs loads all links alike.
A copy that a holding "sends" to its own machine only eases (2) and (4), so the optimum bounds every plan from below.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.highs import by_columns, highs, status
from shardwright.records import record


@record
class OpenNeeds:
    """Needs [K] that are not met from memory, with whether the machine has the shard on its disk; sources [H] of their
    shards, in the order of the shards; the shards' bytes [N]."""

    sizes: Floats
    need_shard: Ints
    need_machine: Ints
    on_own_disk: Bools
    source_shard: Ints
    source_machine: Ints
    source_on_disk: Bools


@record
class TransferSolution:
    """The copies that each source sends [H], the part of each need from its own disk [K], and the least seconds."""

    copies: Floats
    own_disk: Floats
    bound_seconds: float


def solve(
    choices: OpenNeeds, *, up: Floats, down: Floats, disk: Floats, arriving_bytes: Floats, least_seconds: float
) -> TransferSolution:
    """Return the optimum for links of `up`, `down` and `disk` bytes per second [M]; `arriving_bytes` [M] come from the
    cloud in any case."""
    if not len(choices.need_shard):
        return TransferSolution(copies=np.zeros(0), own_disk=np.zeros(0), bound_seconds=least_seconds)
    machines, on_own_disk = len(up), np.flatnonzero(choices.on_own_disk)
    sources, width = len(choices.source_shard), 1 + len(choices.source_shard) + len(on_own_disk)
    shards, row_of_shard = np.unique(choices.need_shard, return_inverse=True)
    wanted = np.bincount(row_of_shard).astype(np.float64)
    unit = float(choices.sizes.max(initial=1.0))  # bytes are counted in the largest shard, for the solver's tolerances
    source_bytes = choices.sizes[choices.source_shard] / unit
    own_bytes = choices.sizes[choices.need_shard[on_own_disk]] / unit
    own_machine = choices.need_machine[on_own_disk]
    every, from_disk = np.arange(sources), np.flatnonzero(choices.source_on_disk)
    column, own_column = 1 + every, 1 + sources + np.arange(len(on_own_disk))
    ones, machine, first = np.ones, np.arange(machines), len(shards)
    entries = [
        (np.searchsorted(shards, choices.source_shard), column, ones(sources)),
        (row_of_shard[on_own_disk], own_column, ones(len(on_own_disk))),
        (first + choices.source_machine, column, source_bytes),
        (first + machine, np.zeros(machines, dtype=np.int64), -up / unit),
        (first + machines + choices.source_machine[from_disk], column[from_disk], source_bytes[from_disk]),
        (first + machines + own_machine, own_column, own_bytes),
        (first + machines + machine, np.zeros(machines, dtype=np.int64), -disk / unit),
        (first + 2 * machines + own_machine, own_column, -own_bytes),
        (first + 2 * machines + machine, np.zeros(machines, dtype=np.int64), -down / unit),
    ]
    needed = np.bincount(choices.need_machine, weights=choices.sizes[choices.need_shard], minlength=machines)
    limits = np.concatenate([np.zeros(2 * machines), -(arriving_bytes + needed) / unit])
    row, place, value = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    solver = highs(
        np.append(1.0, np.zeros(width - 1)),
        by_columns(row, place, value, width),
        lower=np.append(least_seconds, np.zeros(width - 1)),
        upper=np.concatenate([[np.inf], np.full(sources, np.inf), np.ones(len(on_own_disk))]),
        row_lower=np.concatenate([wanted, np.full(3 * machines, -np.inf)]),
        row_upper=np.concatenate([wanted, limits]),
        settings={},
    )
    solver.run()
    assert status(solver) == "optimal", "every need has a source"
    values = np.array(solver.getSolution().col_value)
    parts = np.zeros(len(choices.need_shard))
    parts[on_own_disk] = np.clip(values[1 + sources :], 0.0, 1.0)
    return TransferSolution(
        copies=np.maximum(values[1 : 1 + sources], 0.0), own_disk=parts, bound_seconds=float(values[0])
    )
