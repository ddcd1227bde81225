"""What a GPU of each type does with its rows: seconds and bytes for every way to run them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.context import Context
from shardwright.cost.iteration.layered.shares import (
    RowShares,
    Units,
    gathered_parameters,
    layered_rows,
    memory,
    passes,
    share_bytes,
    state_total,
    units_of,
)
from shardwright.cost.memory.sizes import room_for_tensors
from shardwright.cost.strategies import BLOCK, NONE, UNIFORM
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.space.axes import Space

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)  # chosen: larger ones are hardly more efficient
PARTIAL = (0.25, 0.5, 0.75)  # of the layers that run again, beside none and all of them; chosen


@record(slots=False)
class GpuOptions:
    """The GPUs of one type, `count` of `gpus` in all, which take from 1 to R rows each in one of O ways: seconds of all
    passes and bytes beside the state [O, R]. `needed` are those of the bytes that any plan needs, for bounds. `room` is
    what tensors may take and `state_bytes` what the whole state would. `shares` are the ways, O times R rows."""

    context: Context
    count: int
    gpus: int
    units: Units
    shares: RowShares
    seconds: Floats
    held: Floats
    needed: Floats
    room: float
    state_bytes: float

    @property
    def most_rows(self) -> int:
        return int(self.seconds.shape[1])

    @property
    def waves(self) -> int:
        return int(self.shares.waves[0])

    @property
    def fewest_rows(self) -> int:
        """Every wave has a row on every GPU."""
        return self.waves

    @cached_property
    def legal_rows(self) -> Ints:
        """The most rows up to each number from 0 to R that are legal: fill their micro-batches, of which there are
        times, [O, R + 1]; 0 where none are."""
        rows = np.where(np.isfinite(self.seconds), np.arange(1, self.most_rows + 1), 0)
        return np.concatenate([np.zeros((len(rows), 1), np.int64), np.maximum.accumulate(rows, axis=1)], axis=1)

    def way(self, option: Ints, rows: Ints) -> RowShares:
        """Return the shares of GPUs with given rows in given ways, [N]."""
        return self.shares.take(option * self.most_rows + rows - 1)


def gpu_options(context: Context, space: Space, gpus: int, waves: int, *, flash: bool) -> GpuOptions | None:
    """Return what each GPU of a type does among `gpus` in all, in so many waves: nothing (None) where a layer profile
    has none of its micro-batches without tensor parallelism."""
    count, batch = context.pool.gpus, context.job.global_batch
    most = max((batch - (gpus - count)) // count + 1, 1)
    sizes = _sizes(context, space, most)
    tried = range(1, max(sizes) + 1)
    if not context.timed(layered_rows(tried, gpus, flash=flash)).any():
        return None
    units = units_of(context, tried, gpus, flash=flash)
    shares = _ways(space, context.layer_count, [size for size in sizes if size in units.sizes], most, waves)
    # What is gathered comes on top of a GPU's own part, at most 1 / count of the state, where that leaves as much.
    apart = gathered_parameters(units) <= (1.0 - 1.0 / count) * state_total(context, units)
    seconds, held, needed = np.empty((3, len(shares)))
    for chunk in np.array_split(np.arange(len(shares)), max(len(shares) * units.count // 4_000_000, 1)):
        part = shares.take(chunk)
        seconds[chunk] = np.where(part.rows >= part.micro_batches, passes(context, units, part).total, np.inf)
        nothing = np.zeros(len(part))
        needs = memory(context, units, part, nothing, nothing, gpus)
        held[chunk], needed[chunk] = (
            needs.tensors,
            needs.tensors if apart else needs.activations + needs.logits,
        )
    shape = (-1, most)
    return GpuOptions(
        context=context,
        count=count,
        gpus=gpus,
        units=units,
        shares=shares,
        seconds=coarse(seconds.reshape(shape)),
        held=held.reshape(shape),
        needed=needed.reshape(shape),
        room=room_for_tensors(context.job, context.memory_limit_bytes),
        state_bytes=share_bytes(context, units),
    )


def _sizes(context: Context, space: Space, most: int) -> list[int]:
    """Return the sizes of micro-batches to try: those pinned or measured, or powers of two."""
    usual = context.source.only.get("micro_batch", MICRO_BATCHES)
    wanted = {int(size) for size in space.pins.get("micro_batch", usual)}
    return sorted(size for size in wanted if size <= most) or [min(wanted)]


def _ways(space: Space, layers: int, sizes: Sequence[int], most: int, waves: int) -> RowShares:
    """Return all ways, each for 1 to `most` rows. A GPU with fewer rows than waves has none; its times are infinite."""
    counts = sorted({round(part * layers) for part in PARTIAL} - {0, layers})
    again = [(NONE, 0), *((BLOCK, count) for count in counts), (UNIFORM, 1)]
    wanted = space.allowed("recompute", (NONE, BLOCK, UNIFORM))
    pinned = space.pins.get("recompute_layers")
    kept = [
        (code, count) for code, count in again if code in wanted and (pinned is None or code == NONE or count in pinned)
    ]
    ways = np.array([(size, code, count) for code, count in kept for size in sizes], dtype=np.int64).reshape(-1, 3)
    rows = np.arange(1, most + 1)
    size, code, count = (np.repeat(column, most) for column in ways.T)
    rows = np.tile(rows, len(ways))
    return RowShares(
        rows=rows,
        micro_batches=waves * -(-rows // (waves * np.maximum(size, 1))),
        waves=np.full(len(rows), waves),
        recompute=code,
        recompute_layers=count,
    )


def most_rows(options: GpuOptions, state: Floats, buffers: Floats) -> Ints:
    """Return the most rows that fit beside each of `state` shares and bytes of `buffers`, [N], in each way, [N, O]."""
    free = options.room - state * options.state_bytes - buffers
    fits: Bools = options.held[None] <= free[:, None, None]
    return np.asarray(np.logical_and.accumulate(fits, axis=2).sum(axis=2))
