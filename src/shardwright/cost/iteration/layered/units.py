"""Seconds and bytes of each unit on one GPU, by the size of the micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.context import Context, layer_rows
from shardwright.cost.memory.sizes import logit_bytes
from shardwright.cost.strategies import ZERO3, Strategies, strategies


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """For micro-batches of each of `sizes` [M], ascending: forward and backward seconds of each unit and, of these,
    those of core attention [M, U]; bytes that a unit keeps for its backward pass, by state [M, 3, U]; what lives
    while the largest layer runs backward, by state [M, 3], and what one that runs again adds, an activation between
    layers and the logits [M]. `parameters` [U] are those gathered for a unit, `expert` [U] part of them."""

    sizes: Ints
    forward: Floats
    backward: Floats
    core_seconds: Floats
    kept: Floats
    live: Floats
    group: Floats
    boundary: Floats
    logits: Floats
    parameters: Floats
    expert: Floats

    @property
    def count(self) -> int:
        return len(self.parameters)

    def at(self, size: Ints) -> tuple[Ints, Bools]:
        """Return the row of each size, and whether it is there."""
        row = np.minimum(np.searchsorted(self.sizes, size), len(self.sizes) - 1)
        return row, np.asarray(self.sizes[row] == size)


def layered_rows(sizes: Sequence[int], gpus: int, *, flash: bool) -> Strategies:
    """Return micro-batches of given sizes on `gpus` GPUs as strategies."""
    fixed = {"dp": gpus, "flash": flash, "first_layers": 1, "last_layers": 1}
    fixed |= {"sharding": ZERO3, "overlap_grad": True, "overlap_param": True}
    return strategies([{**fixed, "micro_batch": size} for size in sizes])


def units_of(context: Context, sizes: Sequence[int], gpus: int, *, flash: bool) -> Units:
    """Return the units on one GPU type for micro-batches of `sizes`, ascending, those left out of which a layer profile
    has no times. Raises SpecError where it has none."""
    rows = layered_rows(sizes, gpus, flash=flash)
    known = context.timed(rows)
    rows = rows.take(np.flatnonzero(known)) if known.any() else rows
    found = layer_rows(context, rows)
    table = found.table.take(found.row)

    def each(running: Floats) -> Floats:
        return np.diff(running, axis=-1)

    return Units(
        sizes=rows.micro_batch,
        forward=each(table.forward),
        backward=each(table.backward),
        core_seconds=each(table.core_seconds),
        kept=each(table.kept),
        live=table.live,
        group=table.group,
        boundary=table.boundary,
        logits=logit_bytes(context.model, context.job, rows.micro_batch, rows.cp, rows.tp),
        parameters=each(table.dense)[0] + each(table.expert)[0],
        expert=each(table.expert)[0],
    )
