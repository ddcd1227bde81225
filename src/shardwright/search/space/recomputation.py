"""Expands strategies by recomputation, of which only settings that fit in memory are kept.

Recomputation only adds time, so none is tried where the activations fit; time grows and memory falls with the number of
recomputed layers, so the least that fits is best. All are tried of what the user pins or a rule speaks of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Ints
from shardwright.cost.context import Context, LayerRows
from shardwright.cost.iteration.footprint import (
    Fixed,
    fewest_recomputed_layers,
    fits,
    fixed_bytes,
    leanest_groups,
    least_bytes,
)
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, UNIFORM, Strategies
from shardwright.search.space.expand import Axes, ExpandedRows
from shardwright.search.space.layouts import most_recomputed_layers, recompute_counts


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
    able = least_bytes(context, shards, everything.fixed) <= context.memory_limit_bytes
    rejected = np.where(able, 0, recompute_counts(context, how.space, longest))
    open_rows = np.flatnonzero(able)
    parts: list[tuple[ExpandedRows, Ints]] = []
    for mode in (m for m in (NONE, SELECTIVE, BLOCK, UNIFORM) if m in modes):
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


@dataclass(frozen=True, slots=True)
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
        number, fit = leanest_groups(context, strategies, *rest)
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
