"""Expands layouts into complete strategies, axis by axis, recomputation last.

`arrangements` fixes everything that decides the pipeline's time without recomputation, `states` adds sharding and
offload, and `completions` recomputation. An axis whose best value is known beforehand is not enumerated,
unless the user pins it or a rule speaks of it: communication beside computation is never slower in the cost model than
before or after it.

Recomputation only adds time, so none is tried where the activations fit; time grows and memory falls with the number of
recomputed layers, so the least that fits is best. All are tried of what the user pins or a rule speaks of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np

from shardwright.arrays import Bools, Columns, Floats, Ints
from shardwright.cost.context import Context, LayerRows
from shardwright.cost.iteration.footprint import Footprint
from shardwright.cost.iteration.moments import Fixed, fixed_bytes
from shardwright.cost.iteration.room import fewest_recomputed_layers, fits, leanest_groups, least_bytes
from shardwright.cost.strategies import (
    BLOCK,
    NONE,
    SELECTIVE,
    UNIFORM,
    UNSHARDED,
    ZERO1,
    ZERO2,
    ZERO3,
    Layouts,
    Strategies,
    columns,
)
from shardwright.records import record
from shardwright.search.space.axes import Space, Value, offload_fractions, schedules, sharded_alone, told_to_shard
from shardwright.search.space.layouts import Splits, most_recomputed_layers, rank_orders, recompute_counts

OVERLAPS = ("overlap_tp", "overlap_pp", "overlap_grad", "overlap_param")
SOLVED_AXES = (*OVERLAPS, "recompute", "recompute_layers")


@record
class Axes:
    """How to expand: the space, which of `SOLVED_AXES` must be enumerated all the same, and whether rank orders that
    place all ranks alike are told apart."""

    space: Space
    explicit: frozenset[str]
    tells_orders_apart: bool

    def values(self, axis: str, *values: Value) -> tuple[Value, ...]:
        """Return the values to enumerate; of an overlap the last, best one only."""
        allowed = self.space.allowed(axis, values)
        return allowed if axis not in OVERLAPS or axis in self.explicit else allowed[-1:]


@record
class ExpandedRows(Columns):
    """Strategies with, for each, the index of its layout and of its split."""

    strategies: Strategies
    layout: Ints
    split: Ints


def axes(space: Space, rule_variables: frozenset[str]) -> Axes:
    """Return how to expand when rules speak of `rule_variables` (names of axes)."""
    explicit = frozenset(SOLVED_AXES) & (rule_variables | frozenset(space.pins))
    return Axes(space=space, explicit=explicit, tells_orders_apart="rank_order" in rule_variables)


def layer_variants(context: Context, how: Axes, layouts: Layouts) -> tuple[Strategies, Ints]:
    """Return `layouts` with every setting of the switches that change how a layer is computed, and the index of each
    row's layout."""
    index, switches = _layer_switches(context, how, layouts)
    return _strategies(layouts.take(index), switches), index


def arrangements(
    context: Context, how: Axes, layouts: Layouts, choices: Splits, promising: Callable[[Strategies, Ints], Bools]
) -> ExpandedRows:
    """Return every arrangement of `layouts`: placement, switches of a layer, overlap of transfers, split. Sharding
    and recomputation are left at none. Only those settings of a layer's switches are split that are `promising`."""
    index, switches = _layer_switches(context, how, layouts)
    keep = np.flatnonzero(promising(_strategies(layouts.take(index), switches), index))
    index, switches = index[keep], {name: column[keep] for name, column in switches.items()}
    orders = rank_orders(context, how.space, layouts, apart=how.tells_orders_apart)
    index, switches = _branch(index, switches, "rank_order", lambda i: [(mask[i], values) for mask, values in orders])
    index, switches = _branch(
        index,
        switches,
        "overlap_pp",
        lambda i: [
            ((layouts.vpp[i] == 1), how.values("overlap_pp", 0)),
            ((layouts.vpp[i] > 1) & (layouts.pp[i] > 2), how.values("overlap_pp", 0, 1)),
            ((layouts.vpp[i] > 1) & (layouts.pp[i] == 2), how.values("overlap_pp", 1)),
        ],
    )
    staged, alone = schedules(context, how.space), how.values("zero_bubble", 0)
    index, switches = _branch(index, switches, "zero_bubble", lambda i: _when(layouts.pp[i] > 1, staged, alone))
    stages = layouts.pp[index] * layouts.vpp[index]
    count = choices.count[stages]
    source = np.repeat(np.arange(len(index)), count)
    ends = np.cumsum(count)
    split = (
        np.arange(ends[-1] if len(ends) else 0)
        - np.repeat(ends - count, count)
        + np.repeat(choices.offset[stages], count)
    )
    rows = _strategies(layouts.take(index[source]), {name: column[source] for name, column in switches.items()})
    rows = replace(rows, first_layers=choices.first[split], last_layers=choices.last[split])
    return ExpandedRows(strategies=rows, layout=index[source], split=split)


def states(context: Context, how: Axes, rows: ExpandedRows) -> ExpandedRows:
    """Return `rows` with every sharding, offload and overlap of data-parallel communication."""
    given = rows.strategies
    ranks, alone, on_one = given.dp * given.cp > 1, given.pp == 1, told_to_shard(how.space)
    parts = [(np.zeros(0, dtype=np.int64), (UNSHARDED, 0.0, False, False))]
    whole = context.job.projection_rank is not None
    for sharding in how.values("sharding", UNSHARDED, *(() if whole else (ZERO1, ZERO2, ZERO3))):
        for offload in offload_fractions(how.space, sharded=sharding != UNSHARDED):
            legal = np.ones(len(given), dtype=bool)
            if sharding != UNSHARDED:
                lone = (offload > 0 or on_one) and sharded_alone(context, int(sharding))
                legal = (ranks | lone) & (alone if sharding in (ZERO2, ZERO3) else True)
            for grad, param in _gradient_overlaps(how, sharded=sharding != UNSHARDED):
                able = legal & (ranks if grad else (~ranks if "overlap_grad" not in how.explicit else True))
                parts.append((np.flatnonzero(able), (int(sharding), float(offload), bool(grad), bool(param))))
    chosen, sizes = rows.take(np.concatenate([index for index, _ in parts])), [len(index) for index, _ in parts]
    columns = (np.repeat(column, sizes) for column in zip(*(values for _, values in parts), strict=True))
    names = ("sharding", "offload", "overlap_grad", "overlap_param")
    return replace(chosen, strategies=replace(chosen.strategies, **dict(zip(names, columns, strict=True))))


def _gradient_overlaps(how: Axes, *, sharded: bool) -> list[tuple[Value, Value]]:
    """Return the pairs (overlap_grad, overlap_param) to try. Without data parallelism there is nothing to overlap."""
    grads = how.space.allowed("overlap_grad", (0, 1))
    params = how.space.allowed("overlap_param", (0, 1))
    pairs = [(g, p) for g in grads for p in params if not p or (g and sharded)]
    if {"overlap_grad", "overlap_param"} & how.explicit:
        return pairs
    best = (1, 1 if sharded else 0)
    return [(0, 0), best]


def _layer_switches(context: Context, how: Axes, layouts: Layouts) -> tuple[Ints, dict[str, Ints]]:
    """Return layouts × (sequence_parallel, overlap_tp, flash): indices of layouts and the columns."""
    moe = context.model.has_experts
    index = np.arange(len(layouts))
    can = (layouts.tp > 1) & (context.job.seq_len // layouts.cp % layouts.tp == 0)
    only = context.source.only
    fused = 0 not in only.get("flash", (0, 1))
    choice = how.values("sequence_parallel", *((1,) if moe else only.get("sequence_parallel", (0, 1))))
    alone = how.values("sequence_parallel", 0)
    must = can | ((layouts.tp > 1) if moe else False)
    index, switches = _branch(index, {}, "sequence_parallel", lambda i: [(can[i], choice), (~must[i], alone)])
    index, switches = _branch(
        index,
        switches,
        "overlap_tp",
        lambda i: _when(
            (switches["sequence_parallel"] == 1) & (1 in only.get("overlap_tp", (0, 1))),
            how.values("overlap_tp", 0, 1),
            how.values("overlap_tp", 0),
        ),
    )
    return _branch(
        index,
        switches,
        "flash",
        lambda i: _when(
            (layouts.cp[i] > 1) | fused,
            how.values("flash", 1),
            how.values("flash", 0, 1),
        ),
    )


Choices = list[tuple[Bools, tuple[Value, ...]]]


def _when(mask: Bools, yes: tuple[Value, ...], no: tuple[Value, ...]) -> Choices:
    return [(mask, yes), (~mask, no)]


def _branch(
    index: Ints, columns: dict[str, Ints], name: str, choices: Callable[[Ints], Choices]
) -> tuple[Ints, dict[str, Ints]]:
    """Return the rows once for every value that `choices` gives them, with the new column."""
    parts = [(np.flatnonzero(mask), value) for mask, values in choices(index) for value in values]
    rows = np.concatenate([np.zeros(0, dtype=np.int64), *(rows for rows, _ in parts)])
    column = np.concatenate([np.zeros(0, dtype=np.int64), *(np.full(len(r), v, dtype=np.int64) for r, v in parts)])
    return index[rows], {**{key: old[rows] for key, old in columns.items()}, name: column}


def _strategies(layouts: Layouts, switches: dict[str, Ints]) -> Strategies:
    """Return layouts with switches as strategies; what is not given is off."""
    given = {field.name: getattr(layouts, field.name) for field in fields(layouts)}
    return columns(len(layouts), {**given, **switches})


def completions(
    context: Context, how: Axes, rows: ExpandedRows, shards: LayerRows, starts: Ints
) -> tuple[ExpandedRows, Ints, Ints]:
    """Return the rows with every recomputation that fits and may be best, the index in `rows` of each, and how many
    candidates of each row in `rows` did not fit.

    All rows have equal pp and vpp. Where no recomputation is needed none is tried, unless the user asks for it.
    """
    modes = how.values("recompute", NONE, SELECTIVE, UNIFORM, BLOCK)
    free = "recompute" not in how.explicit
    longest = np.maximum(np.diff(starts, axis=1).max(axis=1), 1)
    everything = _Group(rows, shards, starts, fixed_bytes(context, rows.strategies, shards, starts), longest)
    able = least_bytes(context, rows.strategies, shards, starts, everything.fixed) <= context.memory_limit_bytes
    rejected = np.where(able, 0, recompute_counts(context, how.space, longest))
    open_rows = np.flatnonzero(able)
    parts: list[tuple[ExpandedRows, Ints]] = []
    for mode in (m for m in (NONE, SELECTIVE, BLOCK, UNIFORM) if m in modes):
        if mode != NONE:  # recomputation frees what gradients of weights that are apart need
            open_rows = open_rows[~rows.strategies.zero_bubble[open_rows]]
        if not len(open_rows):
            break
        tried = everything.take(open_rows)
        with_layers = mode in (BLOCK, UNIFORM)
        if with_layers and "recompute_layers" in how.explicit:
            completed, source, lost = _explicit_layers(context, how, tried, mode)
        else:
            completed, source, lost = _best_layers(context, tried, mode)
        rejected[open_rows] += lost
        parts.append((completed, open_rows[source]))
        if free and mode in (NONE, BLOCK):
            open_rows = np.delete(open_rows, source)
    return *_joined(rows, parts), rejected


@record(kw_only=False)
class _Group:
    """Rows of one pipeline shape with what their memory depends on."""

    rows: ExpandedRows
    shards: LayerRows
    starts: Ints
    fixed: Fixed
    longest: Ints

    def take(self, chosen: Ints) -> _Group:
        return _Group(
            self.rows.take(chosen),
            replace(self.shards, row=self.shards.row[chosen]),
            self.starts[chosen],
            self.fixed.take(chosen),
            self.longest[chosen],
        )

    def with_recompute(self, mode: int, layers: Ints) -> Strategies:
        code = np.full(len(self.longest), mode, dtype=np.int64)
        return replace(self.rows.strategies, recompute=code, recompute_layers=layers)


def _best_layers(context: Context, group: _Group, mode: int) -> tuple[ExpandedRows, Ints, Ints]:
    """Return the rows that fit under `mode` with the best number of recomputed layers, their indices, and how many
    settings of each row do not fit."""
    number = np.zeros(len(group.longest), dtype=np.int64)
    strategies, rest = group.with_recompute(mode, number), (group.shards, group.starts, group.fixed)
    if mode == BLOCK:
        number, fit = fewest_recomputed_layers(context, strategies, *rest)
        lost = np.where(fit, number - 1, group.longest)
    elif mode == UNIFORM:

        def within_host(peak: Footprint) -> Floats:
            return np.where(context.holds(0.0, peak.in_host).all(axis=1), peak.total.max(axis=1), np.inf)

        number, fit = leanest_groups(context, strategies, *rest, context.memory_limit_bytes, within_host)
        lost = np.where(fit, 0, most_recomputed_layers(context, mode, group.longest))
    else:
        fit = fits(context, strategies, *rest)
        lost = (~fit).astype(np.int64)
    fitting = np.flatnonzero(fit)
    return replace(group.rows, strategies=group.with_recompute(mode, number)).take(fitting), fitting, lost


def _explicit_layers(context: Context, how: Axes, group: _Group, mode: int) -> tuple[ExpandedRows, Ints, Ints]:
    """Return the same with every number of recomputed layers."""
    lost = np.zeros(len(group.longest), dtype=np.int64)
    parts: list[tuple[ExpandedRows, Ints]] = []
    most = most_recomputed_layers(context, mode, group.longest)
    for number in how.space.allowed("recompute_layers", range(1, int(most.max()) + 1)):
        able = np.flatnonzero(most >= number)
        part = group.take(able)
        strategies = part.with_recompute(mode, np.full(len(able), number, dtype=np.int64))
        fit = fits(context, strategies, part.shards, part.starts, part.fixed)
        lost[able] += ~fit
        parts.append((replace(part.rows, strategies=strategies).take(np.flatnonzero(fit)), able[fit]))
    return *_joined(group.rows, parts), lost


def _joined(rows: ExpandedRows, parts: list[tuple[ExpandedRows, Ints]]) -> tuple[ExpandedRows, Ints]:
    """Return parts of `rows` with their indices as one, nothing where there are none."""
    nothing = np.zeros(0, dtype=np.int64)
    joined, sources = zip((rows.take(nothing), nothing), *parts, strict=True)
    return ExpandedRows.concatenated(joined), np.concatenate(sources)
