"""No part of the certificate excludes a plan that exists: random plans, costed exactly, against the parts of the search
that would rule out their compositions or their region."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

import numpy as np
import pytest
from tests.nightly import examples, nightly
from tests.search.mixed.oracle import MODES, cost
from tests.search.mixed.problems import Small, crowded, small, unlike

from shardwright.search.mixed.bounds.compositions import after, columns, micro_batches
from shardwright.search.mixed.bounds.instance import Instance, instances
from shardwright.search.mixed.drafts.split_times import stages
from shardwright.search.mixed.drafts.splits import Line
from shardwright.search.mixed.heuristics.attempts import drafter, solve_within
from shardwright.search.mixed.master.answer import Infeasible
from shardwright.search.mixed.master.column_pool import ColumnPool
from shardwright.search.mixed.subproblem.eligible import possible
from shardwright.search.mixed.subproblem.exact import least_by_splits
from shardwright.search.mixed.tables.region import Region, by_links, by_types, sites_of
from shardwright.search.space.axes import Space

SLACK = 1.0 + 1e-7
SOME = (*range(2), *nightly(range(2, 30)))
ENDS = ({"first_layers": (1, 2)}, {"last_layers": (1,)})
BETWEEN_SITES = (107, *nightly(range(108, 130)), *nightly(range(97, 107)))


@dataclass(frozen=True)
class Existing:
    """A plan: its field, the units of each type and micro-batches of each replica, its exact seconds, and the region
    that it is in."""

    each: Instance
    counts: np.ndarray
    sizes: list[int]
    seconds: float
    region: Region


def existing(problem: Small, seed: int, tries: int = 6, copies: int = 1) -> Iterator[Existing]:
    """Yield random plans of a problem that fit, with up to so many `copies` of each replica."""
    pick = np.random.default_rng(seed)
    each = instances(problem.settings, problem.tables, problem.contexts[0].job.global_batch, problem.space)[0]
    for _ in range(tries):
        found = random_plan(problem, each, pick, copies)
        if found is not None:
            yield found


@cache
def plain(seed: int) -> list[Existing]:
    return list(existing(small(seed), seed))


def random_plan(problem: Small, instance: Instance, pick: np.random.Generator, copies: int) -> Existing | None:
    table = instance.table
    left, kinds = table.units.copy(), []
    for _ in range(int(pick.integers(1, min(instance.total, int(left.sum())) + 1))):
        number = int(pick.integers(1, copies + 1))
        counts = np.array([pick.integers(0, units // number + 1) for units in left])
        if 0 < counts.sum() <= table.layers:
            kinds.append((counts, number))
            left -= number * counts
    numbers = np.array([number for _, number in kinds])
    if not kinds or numbers.sum() > instance.total:
        return None
    sizes = np.maximum(pick.multinomial(instance.total, numbers / numbers.sum()) // numbers, 1)
    if (sizes * numbers).sum() > instance.total:
        return None
    sizes[-1] += (instance.total - (sizes * numbers).sum()) // numbers[-1]
    if (sizes * numbers).sum() != instance.total:
        return None
    some = [
        random_line(instance, counts, size, int(numbers.sum()), pick)
        for (counts, _), size in zip(kinds, sizes.tolist(), strict=True)
    ]
    if any(line is None for line in some):
        return None
    lines = [line for line, number in zip(some, numbers, strict=True) for _ in range(number)]
    rows = [counts for counts, number in kinds for _ in range(number)]
    sizes = np.repeat(sizes, numbers).tolist()
    made = cost(problem.contexts, problem.cluster, instance.setting, lines, sizes, {})
    if made is None:
        return None
    seconds, plan = made
    counts = np.array(rows)
    there = counts > 0
    used = tuple(np.flatnonzero(there.any(axis=0)).tolist())
    sites = sites_of(table, used)
    crossing = all(there[:, site].any(axis=1).all() for site in sites)
    region = Region(
        fewest=len(rows),
        most=len(rows),
        modes=instance.modes,
        link=float(np.where(there, table.links, 0.0).max(axis=1).min()),
        used=used,
        gpus=plan.gpus,
        crossings=len(sites) - 1 if crossing else 0,
        parted=not crossing,
    )
    return Existing(instance, counts, sizes, seconds * SLACK, region)


def random_line(
    instance: Instance, counts: np.ndarray, size: int, copies: int, pick: np.random.Generator
) -> Line | None:
    table, present = instance.table, np.flatnonzero(counts)
    kinds = np.concatenate([np.full(counts[kind], kind) for kind in pick.permutation(present)])
    cuts = np.sort(pick.choice(np.arange(1, table.layers), len(kinds) - 1, replace=False))
    starts = np.array([[0, *cuts, table.layers]])
    found = stages(table, kinds, starts, micro_batches=size, copies=copies, modes=MODES)
    if not found.fits[0] or not len(instance.ends.kept(starts)):
        return None
    recompute = zip(found.recompute[0].tolist(), found.recompute_layers[0].tolist(), strict=True)
    return Line(
        kinds=tuple(kinds.tolist()),
        starts=tuple(starts[0].tolist()),
        recompute=tuple(recompute),
        seconds=0.0,
        after=0.0,
    )


@pytest.mark.parametrize("seed", SOME)
def test_no_plan_that_exists_is_ruled_out(seed):
    rule_out_no_composition(plain(seed))
    close_no_region(plain(seed))


@pytest.mark.parametrize("seed", [*range(4), *nightly(range(4, 200))])
def test_no_plan_whose_stages_and_copies_share_machines_is_ruled_out(seed):
    plans = list(islice(existing(crowded(seed), seed, tries=12, copies=4), examples(6)))
    rule_out_no_composition(plans)
    close_no_region(plans)


@pytest.mark.parametrize("seed", BETWEEN_SITES)
def test_no_plan_between_sites_is_ruled_out(seed):
    plans = list(existing(small(seed, sites=True), seed))
    rule_out_no_composition(plans)
    close_no_region(plans)


@pytest.mark.parametrize("seed", SOME)
def test_no_plan_of_unlike_layers_is_ruled_out(seed):
    plans = list(islice(existing(unlike(small(seed, most_layers=6), seed), seed, tries=12), examples(12)))
    rule_out_no_composition(plans)
    close_no_region(plans)


@pytest.mark.parametrize("seed", SOME)
@pytest.mark.parametrize("pins", ENDS)
def test_no_plan_with_its_ends_pinned_is_ruled_out(seed, pins):
    close_no_region(with_ends(seed, pins))


def rule_out_no_composition(plans: Iterable[Existing]) -> None:
    for plan in plans:
        each, region = plan.each, plan.region
        for counts, size in zip(plan.counts, plan.sizes, strict=True):
            if counts.sum() < 2:
                continue
            few = size <= counts.sum()
            table = each.capacity(region, 4.0 * plan.seconds, few=few)
            rows, size_of = counts[None], np.array([size])
            assert after(each.table, each.layers, rows, region)[0] <= plan.seconds
            kept = possible(each.table, each.layers, table, rows, region, size_of, plan.seconds)
            assert kept.tolist() == [0], "prices"
            column = columns(each.table, each.layers, table, rows, region, few=few)
            assert len(column.counts) == 1, "capacity"
            if not few or size < counts.sum():
                assert micro_batches(column, plan.seconds)[0] >= min(size, int(column.most[0])), "bounds"
            least = least_by_splits(each.table, each.layers, region, column, size_of, plan.seconds, total=each.total)[0]
            assert least <= plan.seconds, "splits"


def close_no_region(plans: Iterable[Existing]) -> None:
    for plan in plans:
        each, region = plan.each, plan.region
        whole = replace(region, used=(), link=np.inf, crossings=0, parted=False)
        parts = by_types(each.table, whole, region.gpus)
        assert region in [*parts, *(found for part in parts for found in by_links(each.table, part))]
        listing = ColumnPool(each, region, each.compositions(Space()), 4.0 * plan.seconds)
        assert listing.reaches_all(plan.seconds)
        assert solve_within(drafter(each), region, listing, plan.seconds) != Infeasible()
        assert listing.reaches_all(plan.seconds), "after the splits were looked at"
        (root,) = each.roots(Space())
        assert ColumnPool(each, root, each.compositions(Space()), 4.0 * plan.seconds).reaches_all(plan.seconds)


def with_ends(seed: int, pins: dict[str, tuple[int, ...]]) -> list[Existing]:
    return list(islice(existing(small(seed, most_layers=6, pins=pins), seed, tries=24), examples(9)))


def test_there_are_plans_to_look_at():
    assert sum(len(plain(seed)) for seed in range(5)) > 15
    assert all(with_ends(seed, pins) for seed in SOME[:2] for pins in ENDS)
