"""The least memory in which any strategy fits: of a GPU, or of what it takes of its machine's.

Best first, as the search by time is. A layout is bounded by `memory_floor`, a strategy before its recomputation by what
no recomputation frees; what is no leaner than the leanest so far is dropped unseen. Of each mode of recomputation the
number of layers counts that needs least.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from shardwright.arrays import Bools, Floats, Ints, bits_of, least_enough, packed
from shardwright.cost.context import Context, LayerRows, shard_index
from shardwright.cost.iteration.footprint import Footprint, footprint, host_bytes
from shardwright.cost.iteration.moments import Fixed, fixed_bytes
from shardwright.cost.iteration.room import fewest_recomputed_layers, leanest_groups, least_bytes
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, UNIFORM, Strategies
from shardwright.records import record
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space
from shardwright.search.space.expand import Axes, ExpandedRows, arrangements, axes, layer_variants, states
from shardwright.search.space.layouts import layouts, most_recomputed_layers, splits
from shardwright.search.uniform.bounds import distinct_shards, memory_floor
from shardwright.search.uniform.completion import shapes, starts_of

LAYOUTS, STRATEGIES = 16, 256  # that are looked at first, twice as many next; chosen
SWITCHES = ("sequence_parallel", "flash", "zero_bubble", "sharding")  # on which memory depends beside layout and split
IN_MEMORY = {*SWITCHES, "offload", "recompute", "recompute_layers", "first_layers", "last_layers"}

Where = Literal["gpu", "host"]


def any_fits(context: Context, space: Space, filters: Filters) -> bool:
    """Return whether any strategy fits."""
    limit = context.memory_limit_bytes
    return _least(context, space, filters, "gpu", enough=limit, most=limit) is not None


def least_on_gpu(context: Context, space: Space, filters: Filters) -> float | None:
    """Return the bytes of memory that GPUs must have at least for a plan, None where none would do."""
    least = _least(context, space, filters, "gpu")
    return None if least is None else least / context.headroom


def least_in_host(context: Context, space: Space, filters: Filters) -> float | None:
    """Return the bytes of memory that a machine must have at least for a plan on its GPUs, None where none would do."""
    roomy = replace(context, pool=replace(context.pool, host_memory_bytes=np.inf))
    least = _least(roomy, space, filters, "host")
    return None if least is None else least * context.pool.gpus_per_node


@record(kw_only=False)
class _Question:
    """Which memory is to be least: that of a GPU within what the host has, or the other way round. Less than `enough`
    is of no interest."""

    context: Context
    how: Axes
    filters: Filters
    where: Where
    enough: float


class _Shape(NamedTuple):
    """Strategies of one pipeline shape, with what their memory depends on."""

    rows: Strategies
    shards: LayerRows
    starts: Ints
    fixed: Fixed

    @property
    def longest(self) -> Ints:
        return np.asarray(np.maximum(np.diff(self.starts, axis=1).max(axis=1), 1))

    def take(self, chosen: Ints) -> _Shape:
        shards = replace(self.shards, row=self.shards.row[chosen])
        return _Shape(self.rows.take(chosen), shards, self.starts[chosen], self.fixed.take(chosen))


def _least(
    context: Context, space: Space, filters: Filters, where: Where, *, enough: float = 0.0, most: float = np.inf
) -> float | None:
    """Return the least bytes that the fullest GPU of a strategy needs, or any that are `enough`, None where all need
    more than `most`."""
    space = [space, *(narrower for _, narrower in filters.narrowings(context, space))][-1]
    rows = layouts(context, space)
    choices, how = splits(context, space, rows.pp * rows.vpp), axes(space, filters.axes)
    for _, mask in filters.layout_masks(context, rows):
        rows = rows.take(~mask)
    if not len(rows):
        return None
    index = shard_index(context, layer_variants(context, how, distinct_shards(rows))[0])
    floor = memory_floor(context, how, rows, index)
    if where == "host":
        rows = rows.take(floor <= context.memory_limit_bytes)
        floor = np.zeros(len(rows))
    question, order = _Question(context, how, filters, where, enough), np.argsort(floor, kind="stable")
    above = float(np.nextafter(most, np.inf))
    position, size, best = 0, LAYOUTS, above
    while position < len(order) and floor[order[position]] < best and best > enough:
        batch = rows.take(order[position : position + size])
        position, size = position + size, 2 * size
        arranged = arrangements(context, how, batch, choices, lambda variants, _: np.ones(len(variants), dtype=bool))
        for shape in shapes(_told_apart(question, states(context, how, _told_apart(question, arranged)))):
            if best > enough:
                best = _of_shape(question, shape, index.of(shape.strategies), best)
    return best if best < above else None


def _told_apart(question: _Question, rows: ExpandedRows) -> ExpandedRows:
    """Return one row of those whose memory is the same, where no rule tells them apart."""
    given = rows.strategies
    if question.filters.axes - IN_MEMORY:
        return rows
    _, offload = np.unique(given.offload, return_inverse=True)
    columns = [rows.layout, rows.split, *(getattr(given, name) for name in SWITCHES), offload]
    _, first = np.unique(packed(columns, bits_of(columns)), return_index=True)
    return rows.take(first)


def _of_shape(question: _Question, rows: ExpandedRows, shards: LayerRows, best: float) -> float:
    """Return the least of `best` and the bytes of rows of one pipeline shape under any recomputation."""
    context, starts = question.context, starts_of(question.context, rows.strategies)
    fixed = fixed_bytes(context, rows.strategies, shards, starts)
    shape = _Shape(rows.strategies, shards, starts, fixed)
    on_gpu, in_host = least_bytes(context, rows.strategies, shards, starts, fixed), fixed.in_host.max(axis=1)
    bounds = _needed(question, on_gpu, in_host)
    order, position, size = np.argsort(bounds, kind="stable"), 0, STRATEGIES
    while position < len(order) and bounds[order[position]] < best and best > question.enough:
        chosen = order[position : position + size]
        position, size = position + size, 2 * size
        part = shape.take(chosen[bounds[chosen] < best])
        for mode in map(int, question.how.values("recompute", NONE, SELECTIVE, BLOCK, UNIFORM)):
            best = _under(question, part, mode, best)
    return best


def _under(question: _Question, part: _Shape, mode: int, best: float) -> float:
    """Return the least of `best` and the bytes of strategies under a mode of recomputation, with the leanest number of
    layers, or with all numbers where a pin or a rule speaks of it."""
    context, space = question.context, question.how.space
    if mode != NONE:  # recomputation frees what gradients of weights that are apart need
        part = part.take(np.flatnonzero(~part.rows.zero_bubble))
    if mode in (BLOCK, UNIFORM) and "recompute_layers" in question.how.explicit:
        most = most_recomputed_layers(context, mode, part.longest)
        tried = np.array(space.allowed("recompute_layers", range(1, int(most.max(initial=0)) + 1)), dtype=np.int64)
        row, number = np.nonzero(tried <= most[:, None])
        part, number = part.take(row), tried[number]
    else:
        part, number = _leanest(question, part, mode, best)
    if not len(number):
        return best
    rows = _with(part.rows, mode, number)
    peak = footprint(context, rows, part.shards, part.starts, part.fixed)
    needed = _of_peak(question, peak)
    better = np.flatnonzero(needed < best)
    rows, needed = rows.take(better), needed[better]
    for _, mask in question.filters.masks(context, rows):
        rows, needed = rows.take(~mask), needed[~mask]
    return min(best, float(needed.min(initial=np.inf)))


def _needed(question: _Question, on_gpu: Floats, in_host: Floats) -> Floats:
    """Return the bytes that are to be least, infinite where the other memory has no room."""
    if question.where == "gpu":
        return np.where(in_host <= question.context.pool.host_memory_bytes_per_gpu, on_gpu, np.inf)
    return np.where(on_gpu <= question.context.memory_limit_bytes, in_host, np.inf)


def _of_peak(question: _Question, peak: Footprint) -> Floats:
    return _needed(question, peak.total.max(axis=1), peak.in_host.max(axis=1))


def _leanest(question: _Question, part: _Shape, mode: int, best: float) -> tuple[_Shape, Ints]:
    """Return the strategies that may need less than `best` under a mode, and the leanest numbers of layers."""
    context, rest = question.context, (part.shards, part.starts, part.fixed)
    most, rows = part.longest, _with(part.rows, mode, part.longest)
    if mode == UNIFORM:
        limit = best if question.where == "gpu" else context.memory_limit_bytes
        number, able = leanest_groups(context, rows, *rest, limit, lambda peak: _of_peak(question, peak))
        return part.take(np.flatnonzero(able)), number[able]
    if mode != BLOCK:
        return part, np.zeros_like(most)
    if question.where == "host":
        return part, fewest_recomputed_layers(context, rows, *rest)[0]
    if context.job.options.activation_offload != "inputs":
        return part, most

    def held(fewer: Ints) -> Bools:  # the more layers run again, the more inputs are in the host
        taken = host_bytes(context, _with(part.rows, mode, most - fewer), *rest)
        return np.asarray(context.holds(0.0, taken).all(axis=1))

    return part, most - least_enough(np.zeros_like(most), most - 1, held)


def _with(rows: Strategies, mode: int, number: Ints) -> Strategies:
    return replace(rows, recompute=np.full(len(rows), mode, dtype=np.int64), recompute_layers=number)
