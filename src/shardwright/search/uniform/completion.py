"""From arrangements to complete strategies, a pipeline shape at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.context import Context, ShardIndex
from shardwright.cost.iteration.batch import shape_groups
from shardwright.cost.strategies import Layouts, Strategies, boundaries
from shardwright.search.space.expand import Axes, ExpandedRows, completions, states


def worth_splitting(
    context: Context, index: ShardIndex, rows: Layouts, useful: Callable[[Floats, Strategies, Ints], Bools]
) -> Callable[[Strategies, Ints], Bools]:
    """Return the test whether the work alone leaves a setting of the layer's switches a chance, before it is split:
    where `useful` says so of its least seconds, the setting and the index of its layout."""
    share = context.job.global_batch // (rows.dp * rows.micro_batch) / rows.pp

    def test(variants: Strategies, layout: Ints) -> Bools:
        shards = index.of(variants)
        work = (shards.table.forward[:, -1] + shards.table.backward[:, -1])[shards.row]
        return np.asarray(useful(work * share[layout], variants, layout))

    return test


def completed(
    context: Context, how: Axes, index: ShardIndex, arranged: ExpandedRows
) -> Iterator[tuple[ExpandedRows, Ints]]:
    """Yield, for each shape of the pipeline, the complete rows that fit and may be best, and how many candidates of
    each arrangement do not fit."""
    for rows in shapes(states(context, how, arranged)):
        starts = starts_of(context, rows.strategies)
        full, _, lost = completions(context, how, rows, index.of(rows.strategies), starts)
        yield full, lost


def shapes(rows: ExpandedRows) -> Iterator[ExpandedRows]:
    """Yield the rows of each number of pipeline ranks and virtual stages."""
    given = rows.strategies
    for group in shape_groups(given.pp, given.vpp):
        yield rows.take(group)


def starts_of(context: Context, rows: Strategies) -> Ints:
    """Return the layer at which each virtual stage of rows of one shape starts, [N, V + 1]."""
    stages = int(rows.pp[0] * rows.vpp[0])
    return boundaries(context.layer_count, stages, rows.first_layers, rows.last_layers)
