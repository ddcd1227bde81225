"""Optimizer state in host memory, which is searched after all other plans, where it may beat the best of them.

State in host memory leaves room on the GPU and takes time to update: all of it leaves most room, some part takes least
time. A setting with both is a relaxation of those with any part, and its bound mostly says that none gains: where
memory is not short, or where the update takes longer than the room saves. Only what it leaves is searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.context import Context
from shardwright.rows import grouped
from shardwright.search.mixed.bounds.instance import HOPELESS, Instance, instances
from shardwright.search.mixed.master.answer import Infeasible
from shardwright.search.mixed.master.regions import bounded
from shardwright.search.mixed.tables.columns import Table
from shardwright.search.mixed.tables.model_tables import tables
from shardwright.search.mixed.tables.settings import Setting
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import OFFLOADS, Space
from shardwright.spec.cluster import SiteLink


def in_host(space: Space, filters: Filters) -> Space | None:
    """Return the space of plans with parts of the optimizer state in host memory, which are searched after those
    without; None where pins or rules speak of it, so that all are searched together."""
    if "offload" in space.pins or "offload" in filters.axes:
        return None
    return replace(space, pins={**space.pins, "offload": tuple(part for part in OFFLOADS if part)})


def that_may_gain(
    contexts: Sequence[Context],
    settings: Sequence[Setting],
    space: Space,
    links: Sequence[SiteLink],
    *,
    longest: float,
    cutoff: float,
) -> tuple[list[Setting], float]:
    """Return the settings that may have plans of fewer than `cutoff` seconds, told of those that differ in the part in
    host memory alone together, where all have some; and seconds that no plan of any of these beats, infinite where
    there are none. Plans of `longest` seconds or more are of no use."""
    alike = grouped((_with(setting, 1.0), setting.sharing.offload) for setting in settings)
    joined = [whole for whole, parts in alike.items() if all(parts) and len(parts) > 1]
    if not joined:
        return list(settings), np.inf
    batch, without = contexts[0].job.global_batch, [_with(whole, 0.0) for whole in joined]
    made = dict(zip(joined, tables(contexts, without, links), strict=True))
    quick = {_with(plain.setting, 1.0): plain.quick for plain in instances(without, list(made.values()), batch, space)}
    quick_ones = [whole for whole in joined if quick.get(whole, np.inf) < cutoff]
    relaxed = [
        replace(table, update_seconds=_least_update(made[whole], table, alike[whole]))
        for whole, table in zip(quick_ones, tables(contexts, quick_ones, links), strict=True)
    ]
    least = {
        instance.setting: _least(instance, space, longest, cutoff)
        for instance in instances(quick_ones, relaxed, batch, space)
    }
    gone = {whole for whole in joined if least.get(whole, np.inf) >= cutoff}
    return [setting for setting in settings if _with(setting, 1.0) not in gone], min([cutoff, *least.values()])


def _least(instance: Instance, space: Space, longest: float, cutoff: float) -> float:
    """Return seconds that no plan of a setting beats: the cutoff at most."""
    counts, longest = instance.compositions(space), min(longest, HOPELESS * instance.quick)
    cutoff = min(cutoff, longest)
    bounds = (
        bounded(instance, root, counts, known=instance.quick, cutoff=cutoff, longest=longest)
        for root in instance.roots(space)
    )
    return min([cutoff, *(bound.seconds for bound in bounds if not isinstance(bound, Infeasible))])


def _with(setting: Setting, part: float) -> Setting:
    """Return a setting with a part of the state in host memory."""
    return replace(setting, sharing=replace(setting.sharing, offload=part))


def _least_update(without: Table, whole: Table, parts: Sequence[float]) -> Floats:
    """Return the least seconds to update a parameter with any of some `parts` of its state in host memory, [G]: the GPU
    updates the rest, as it does all in the table `without`, and the host as it does all in the table `whole`, at
    once."""
    return np.asarray(
        np.min(
            [np.maximum((1.0 - part) * without.update_seconds, part * whole.update_seconds) for part in parts], axis=0
        )
    )
