"""What a pipeline leaves to do after it at least, for the gradients and weights of all of its layers to travel.

The stage at position i has for that its own passes, those of the i stages before it, and A seconds after the pipeline:
k layers need k rho <= A + i tau, with rho the seconds of a layer's gradients and weights beyond what its own passes
hide, and of its part of the optimizer step. Summed over the stages of a composition that gives the least A. All is at
its best: as many copies in a domain as can be.

The slowest links among a layer's holders decide. A replica all of whose types have links of `link` or slower holds
every layer, and so no layer is reduced faster: a region is the plans whose slowest such replica is limited by `link`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.network.collectives import OVERLAP_SLOWDOWN, Fabric, gather_seconds
from shardwright.records import record
from shardwright.search.mixed.tables.columns import Layers, Table, Unit
from shardwright.search.mixed.tables.compositions import Arrangement
from shardwright.search.mixed.tables.region import Region, ring_delay_between_sites, ring_pace_between_sites


@record(kw_only=False)
class Traffic:
    """Bytes of a parameter that travel once an iteration, how many rings they pass, and the part of a pass to which
    they do not add where they travel beside it."""

    width: float
    rings: float
    hidden: float

    @property
    def least(self) -> float:
        """The part that is added in any case: what travels slows the pass beside it."""
        return OVERLAP_SLOWDOWN if self.hidden else 1.0


def traffic(table: Table) -> tuple[Traffic, Traffic]:
    """Return what travels beside the backward passes, and what beside the forward passes."""
    alone, gathered = 1.0 - OVERLAP_SLOWDOWN, float(table.shared_update)
    return (
        Traffic(table.reduced_bytes, 2.0 - gathered, alone * table.reduced_beside),
        Traffic(table.gathered_bytes, gathered, alone * table.gathered_beside),
    )


def byte_seconds(
    table: Table, weights: Floats, region: Region, *, beside: Sequence[int] = (), crowd: int | None = None
) -> Floats:
    """Return the least seconds to gather one byte of each of up to so many `weights`, dense ones and experts' [2, G],
    from the copies in a plan of a region, per weight, [2, G]. With copies on the types `beside`, not all stand in one
    domain, and their links and domains count, too. No domain has more than `crowd` of them.

    Some replica has no links faster than those of the region. It holds all layers, so types with faster links share
    theirs with one that it may have."""
    table = table if crowd is None else replace(table, local=np.minimum(table.local, crowd))
    once = _byte_seconds(table, weights, region.fewest, region.link, beside)
    if not np.isfinite(region.link):
        return once
    slow = [kind for kind in region.used if table.links[kind] <= region.link]
    shared = [_byte_seconds(table, weights, region.fewest, region.link, (*beside, kind)) for kind in slow]
    return np.where(table.links > region.link, np.maximum(once, np.min(shared, axis=0)), once)


def _byte_seconds(table: Table, weights: Floats, fewest: int, link: float, beside: Sequence[int]) -> Floats:
    """Return the least seconds to gather a byte of each weight, [2, G], from `fewest` copies or more, some of them on
    types `beside`. The time grows with copies, and less than in proportion with weights."""
    if fewest < 2 and (table.holders <= 1.0).all():
        return np.zeros((2, table.types))
    by_fabric, others = [], list(beside)
    link = min(link, float(table.links[others].min(initial=np.inf)))
    for kind, fabric in enumerate(table.fabrics):
        pace = min(fabric.inter_bytes_per_second, link / float(table.wide[kind]))
        most = int(min([table.local[kind], *table.local[others]] if others else [table.local[kind], fewest]))
        of_type = float(weights[0, kind]), float(weights[1, kind])
        by_fabric.append(_least_gathers(fabric, pace, table.unit[kind], most, fewest, bool(others), of_type))
    return np.array(by_fabric).T


@lru_cache(maxsize=1024)
def _least_gathers(
    fabric: Fabric, pace: float, unit: Unit, most: int, fewest: int, apart: bool, weights: tuple[float, float]
) -> tuple[float, ...]:
    """Return the least seconds to gather a byte of dense `weights`, and of experts', per weight, from `fewest` copies
    or more, at `pace` between domains, where 1 to `most` stand in the domain that has fewest of them: in all of them,
    or if `apart` as many or more in another."""
    local = np.arange(1, most + 1)
    several = np.maximum(fewest, 2 * local)
    groups = unit.groups(np.where(apart | (local < fewest), several, local), local)
    links = replace(fabric, inter_bytes_per_second=pace)
    return tuple(
        float(gather_seconds(links, ranks, np.array(held)).min()) / held if held else 0.0
        for ranks, held in zip(groups, weights, strict=True)
    )


@record
class Travel:
    """What gradients and weights need on each type, [G]: `each` seconds of a layer beyond what its own passes hide,
    `first` and `last` what the embedding and the head add, `given` the seconds that any stage has."""

    each: Floats
    first: Floats
    last: Floats
    given: Floats


def travel(table: Table, layers: Layers, region: Region) -> list[Travel]:
    """Return what the layers of replicas in a plan of a region need.

    Communication of c seconds beside passes of p takes max(s c, c - h p) more: either part bounds what a whole stage
    needs from below, the same one for all that it holds. The first needs have the part that is greater for a layer, the
    second ones, where they differ, c - h p."""
    once = byte_seconds(table, layers.all_weights, region)
    kinds, updates = traffic(table), table.updates(region.most)
    gathered = (once * layers.weights).sum(axis=0)
    hidden = [
        (1.0 - OVERLAP_SLOWDOWN) * each.width * gathered >= each.hidden * passing
        for each, passing in zip(kinds, layers.longest, strict=True)
    ]

    def needs(branches: Sequence[Bools]) -> Travel:
        def needed(held: Floats, passes: Floats) -> Floats:
            seconds, travels = (updates * held).sum(axis=0), (once * held).sum(axis=0)
            for of, passing, branch in zip(kinds, passes, branches, strict=True):
                whole = of.width * travels
                seconds = seconds + np.where(branch, whole - of.hidden * passing, OVERLAP_SLOWDOWN * whole)
            return np.asarray(seconds)

        passes = [np.where(branch, of.hidden * table.each, 0.0) for of, branch in zip(kinds, branches, strict=True)]
        of_layer = needed(layers.weights, layers.longest) + layers.orthogonal / region.most
        spare = layers.total * np.maximum(-of_layer, 0.0)  # what the passes of all layers hide of other communication
        return Travel(
            each=np.maximum(of_layer, 1e-300),
            first=np.maximum(needed(layers.first_weights, layers.first_passes) - spare, 0.0),
            last=np.maximum(needed(layers.last_weights, layers.last_passes) - spare, 0.0),
            given=passes[0] + passes[1] - table.step_seconds,
        )

    everything = np.ones(table.types, dtype=bool)
    limits = [needs(hidden)]
    return limits if all(branch.all() for branch in hidden) else [*limits, needs([everything, everything])]


def layers_in_tail(needs: Travel, kinds: Ints, seconds: Floats, tail: float) -> Floats:
    """Return the most layers of the stages of a pipeline on types `kinds` [P] with bottlenecks `seconds` [J] whose
    gradients and weights leave `tail` seconds after it, [J, P]."""
    left = tail + needs.given[kinds] + np.arange(len(kinds)) * seconds[:, None]
    left[:, 0] -= needs.first[kinds[0]]
    left[:, -1] -= needs.last[kinds[-1]]
    return np.asarray(left / needs.each[kinds])


def least_tail(needs: Sequence[Travel], order: Arrangement, held: Floats, seconds: Floats, layers: Layers) -> Floats:
    """(P3) Return the least seconds after the pipeline, [N], of compositions with the bottlenecks `seconds` [N] whose
    stages of a type hold `held` [N, G] layers at most, all of them those of the model or more."""
    return np.asarray(np.max([_tail(part, order, held, seconds, layers) for part in needs], axis=0))


def _tail(needs: Travel, order: Arrangement, held: Floats, seconds: Floats, layers: Layers) -> Floats:
    counts, each = order.counts, needs.each
    speed = counts / each
    # Layers of a type that leave A seconds: speed A + fixed, and no more than it holds.
    fixed = speed * (needs.given + 0.5 * (2 * order.start + counts - 1) * seconds[:, None])
    fixed -= (order.begins * needs.first + order.ends * needs.last) / each
    one = needs.first + float(layers.weight.min()) * each - needs.given
    tail = np.maximum(np.where(order.begins if order.known else counts > 0, one, np.inf).min(axis=1), 0.0)
    free = counts > 0
    for _ in range(counts.shape[1]):
        # Types that hold no more take all that they hold, the others share the rest.
        missing = layers.total - np.where(free, fixed, held).sum(axis=1)
        rate = (speed * free).sum(axis=1)
        tail = np.maximum(tail, np.where(rate > 0.0, missing / np.maximum(rate, 1e-300), 0.0))
        full = free & (speed * tail[:, None] + fixed >= held)
        if not full.any():
            break
        free &= ~full
    return np.asarray(tail)


def parted_seconds(table: Table, layers: Layers, region: Region) -> Floats:
    """Return the least seconds, beyond the passes of a stage with it, of one layer that is reduced between sites, on
    each type, [G]; zeros where none is."""
    if not region.parted:
        return np.zeros(table.types)
    weights = layers.weights * float(layers.weight.min())
    pace, delay = ring_pace_between_sites(table, region), ring_delay_between_sites(table, region)
    exposed, kinds = np.zeros(table.types), traffic(table)
    for kind, fabric in enumerate(table.fabrics):
        slower, of_type = min(fabric.inter_bytes_per_second, pace), (float(weights[0, kind]), float(weights[1, kind]))
        least = _least_gathers(fabric, slower, table.unit[kind], int(table.local[kind]), region.fewest, True, of_type)
        once = least[0] * of_type[0] + least[1] * of_type[1]
        for of, passing in zip(kinds, layers.longest[:, kind] * float(layers.weight.max()), strict=True):
            travels = of.width * once + of.rings * delay
            exposed[kind] += max(of.least * travels, travels - of.hidden * passing)
    return np.maximum(exposed - sum(of.hidden for of in kinds) * table.each, 0.0)


def single_stage_seconds(table: Table, weights: Floats, region: Region) -> Floats:
    """Return the least seconds of gradients and weights after the passes of a replica of one stage that holds so many
    `weights` [2, G], beside replicas that have all of the types in use."""
    beside = region.used if len(region.used) > 1 else ()
    link, delays = region.link, 0.0
    if region.parted:
        link = min(link, ring_pace_between_sites(table, region) * float(table.wide.max()))
        delays = ring_delay_between_sites(table, region) * (table.layers + 2)
    once = (_byte_seconds(table, weights, region.fewest, link, beside) * weights).sum(axis=0)
    seconds = np.zeros(table.types)
    for of, passing in zip(traffic(table), (table.backward[:, -1], table.forward[:, -1]), strict=True):
        travels = of.width * once + of.rings * delays
        seconds += np.maximum(travels - of.hidden * (passing + table.each), of.least * travels)
    return seconds
