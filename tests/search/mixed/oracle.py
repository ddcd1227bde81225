"""The best mixed plan of a small cluster by enumeration: all compositions, orders, splits, recomputations and shares.

Replica by replica. What is left out cannot beat the best plan so far: each replica takes its pipeline and what it leaves
to reduce and to gather, at the least whatever the replicas still to come are and wherever the units stand; then comes
the longest optimizer step. What remains is costed with `mixed_iteration`, in all orders of the replicas and of the
ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tests.search.mixed.oracle_lines import MODES as MODES
from tests.search.mixed.oracle_lines import Counts, Lines, Shop, compositions, line_of, lines, splits
from tests.search.mixed.oracle_tails import paces

from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.cost.strategies import stage_rows
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.search.mixed.drafts.draft import ORDERS, Draft, fitting_seconds, plan_of
from shardwright.search.mixed.drafts.split_times import stages, tails
from shardwright.search.mixed.drafts.splits import Line
from shardwright.search.mixed.tables.columns import Table
from shardwright.search.mixed.tables.model_tables import tables
from shardwright.search.mixed.tables.settings import Setting
from shardwright.search.space.axes import Space, within
from shardwright.spec.cluster import Cluster

SLACK = 1e-9


class TooManyError(Exception):
    """The enumeration would take too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A replica of a composition with so many micro-batches, and all its pipelines."""

    counts: Counts
    micro_batches: int
    lines: Lines
    least: np.ndarray


@dataclass(slots=True)
class Run:
    """The best so far, and how much more may be looked at: plans costed and sets of pipelines compared."""

    contexts: Sequence[Context]
    cluster: Cluster
    best: float
    left: int
    costed: int = 0
    nodes: int = 0
    plan: Plan | None = None
    space: Space = field(default_factory=Space)
    known: Known = field(default_factory=dict)

    @property
    def limit(self) -> float:
        return self.best * (1.0 - SLACK)


def brute_force(
    contexts: Sequence[Context],
    cluster: Cluster,
    settings: Sequence[Setting],
    most: int,
    best: float = np.inf,
    machines: Sequence[int] | None = None,
    space: Space | None = None,
) -> Run:
    """Return the plan that is best of all that keep the pins of `space` and better than `best` seconds, if any; on so
    many `machines` of each type where these are given. Raises TooManyError where more than `most` sets of pipelines
    would have to be looked at."""
    space = space or Space()
    run = Run(contexts, cluster, best, most, space=space)
    # GPUs of several types in one machine may do without the network, which is slower.
    near = tuple(replace(context, one_machine=context.pool.mixed is not None) for context in contexts)
    for setting, table in zip(settings, tables(near, settings), strict=True):
        if machines is not None:
            there = np.array([context.pool.nodes for context in contexts])
            table = replace(table, units=table.units // there * np.array(machines))
        modes = tuple(int(code) for code in space.pins.get("recompute", MODES))
        shop = Shop(contexts=near, setting=setting, table=table, paces=paces(table), modes=modes)
        for copies in range(1, min(int(table.units.sum()), shop.total) + 1):
            items = list(_items(run, shop, copies))
            for chosen in _choices(run, shop, items, copies):
                _joined(run, shop, sorted(chosen, key=lambda item: len(item.lines.update)), [])
    return run


def _items(run: Run, shop: Shop, copies: int) -> Iterator[Item]:
    for counts in compositions(shop.table, copies - 1):
        for size in range(1, shop.total - copies + 2) if copies > 1 else (shop.total,):
            found = lines(shop, counts, size, copies, run.limit)
            if found is not None:
                yield Item(counts=counts, micro_batches=size, lines=found, least=found.least)


def _choices(run: Run, shop: Shop, items: Sequence[Item], copies: int) -> Iterator[list[Item]]:
    """Yield the sets of `copies` items that share out all micro-batches on the units that there are."""
    reached = max((item.micro_batches for item in items), default=0)

    def more(first: int, left: tuple[int, ...], size: int, chosen: list[Item]) -> Iterator[list[Item]]:
        missing = copies - len(chosen)
        if missing == 0:
            if size == 0:
                yield list(chosen)
            return
        if not missing <= size <= missing * reached:
            return
        for place in range(first, len(items)):
            item = items[place]
            rest = tuple(units - count for units, count in zip(left, item.counts, strict=True))
            if min(rest) >= 0 and item.micro_batches <= size:
                yield from more(place, rest, size - item.micro_batches, [*chosen, item])

    for chosen in more(0, tuple(shop.table.units.tolist()), shop.total, []):
        _count(run)
        if _least_together([item.least for item in chosen]) < run.limit:
            yield chosen


def _least_together(parts: Sequence[np.ndarray]) -> float:
    one, other, update, norm = np.max(parts, axis=0)
    return float(min(one, other) + update + norm)


def _joined(run: Run, shop: Shop, items: Sequence[Item], chosen: list[tuple[Item, int]]) -> None:
    """Cost every plan of pipelines `chosen`, as (item, row), and of those of the items after them."""
    place = len(chosen)
    _count(run)
    seconds = _least_with(shop, items, chosen)
    first = chosen[-1][1] if chosen and chosen[-1][0] is items[place] else 0
    for row in np.argsort(seconds, kind="stable").tolist():
        if seconds[row] >= run.limit:
            break
        if row < first:  # of equal items in rising order only
            continue
        if place + 1 < len(items):
            _joined(run, shop, items, [*chosen, (items[place], row)])
        else:
            _cost(run, shop, [*chosen, (items[place], row)], float(seconds[row]))


def _least_with(shop: Shop, items: Sequence[Item], chosen: Sequence[tuple[Item, int]]) -> np.ndarray:
    """Return the least seconds of a plan of the pipelines `chosen` and each of the next item, [N], whatever the
    pipelines of the items after it are."""
    table, place = shop.table, len(chosen)
    new, rest = items[place].lines, items[place + 1 :]
    before = [item.lines.take(np.array([row])) for item, row in chosen]
    others = [*before, new]
    more = np.array([item.counts for item in rest], dtype=np.int64).reshape(-1, table.types).sum(axis=0)
    parts = [item.least[:, None] for item in rest]
    for each in others:
        held = (each.kinds[:, :, None] == np.arange(table.types)).astype(np.int64)
        for other in others:
            if other is not each:
                held = held + _overlapping(each, other, table.types)
        once = shop.paces.once(each.kinds, each.starts, held, more, len(rest))
        reduce, gather = tails(table, each.found, once)
        before = each.pipeline + reduce.max(axis=1) + gather.max(axis=1)
        parts.append(np.array(np.broadcast_arrays(*(before + each.tied.T), each.update, each.norm)))
    one, two, update, norm = np.max(np.broadcast_arrays(*parts), axis=0)
    return np.asarray(np.minimum(one, two) + update + norm)


def _overlapping(each: Lines, other: Lines, types: int) -> np.ndarray:
    """Return how many stages of each type of `other` hold layers of each stage, [N, P, G]."""
    begin, end = each.starts[:, :-1, None], each.starts[:, 1:, None]
    shared = (begin < other.starts[:, None, 1:]) & (other.starts[:, None, :-1] < end)
    of_type = (other.kinds[:, :, None] == np.arange(types)).astype(np.int64)
    return np.asarray(shared.astype(np.int64) @ of_type)


def _count(run: Run) -> None:
    run.nodes += 1
    if run.nodes + 10 * run.costed > run.left:
        raise TooManyError


def _cost(run: Run, shop: Shop, chosen: Sequence[tuple[Item, int]], least: float) -> None:
    run.costed += 1
    sizes = [item.micro_batches for item, _ in chosen]
    for made in _recomputed(shop, chosen):
        found = cost(run.contexts, run.cluster, shop.setting, made, sizes, run.known, run.space)
        if found is None:
            continue
        assert least <= found[0] * (1.0 + SLACK), "the enumeration leaves out plans that may be the best"
        if found[0] < run.best:
            run.best, run.plan = found


def _recomputed(shop: Shop, chosen: Sequence[tuple[Item, int]]) -> Iterator[list[Line]]:
    """Yield lines with the recomputation that fits; in a plan of unequal degrees, where holders of a layer may keep
    its weights twice, also with the one that fits beside these."""
    yield [item.lines.line(row) for item, row in chosen]
    if len(chosen) == 1 or not shop.table.copied_bytes.any():
        return
    table, made = shop.table.laid_out(), []
    for item, row in chosen:
        kinds, starts = item.lines.kinds[row], item.lines.starts[row]
        found = stages(
            table, kinds, starts[None], micro_batches=item.micro_batches, copies=len(chosen), modes=shop.modes
        )
        if found.fits[0]:
            made.append(line_of(kinds, starts, found, 0))
    if len(made) == len(chosen):
        yield made


def cost(
    contexts: Sequence[Context],
    cluster: Cluster,
    setting: Setting,
    chosen: Sequence[Line],
    shares: Sequence[int],
    known: Known,
    space: Space | None = None,
) -> tuple[float, Plan] | None:
    """Return seconds and plan, under the best order of replicas and of ranks, or None where it does not fit."""
    best = None
    each = sorted(zip(chosen, shares, strict=True), key=str)
    groups = [(line, len(list(group)), size) for (line, size), group in itertools.groupby(each)]
    for replicas in itertools.permutations(groups):
        draft = Draft(setting=setting, replicas=replicas, seconds=0.0)
        for order in ORDERS:
            plan = plan_of(contexts, cluster, draft, rank_order=order)
            if check(plan) or not keeps(plan, space or Space()):
                continue
            seconds = fitting_seconds(contexts, plan, known)
            if seconds is not None and (best is None or seconds < best[0]):
                best = (seconds, plan)
    return best


def keeps(plan: Plan, space: Space) -> bool:
    """Return whether each stage of a plan, as a strategy of such stages, has what is pinned, and the plan the GPUs."""
    of_stages = Space(pins={axis: values for axis, values in space.pins.items() if axis != "gpus"})
    rows = [stage_rows(plan, replica) for replica in plan.replicas]
    return plan.gpus in space.pins.get("gpus", (plan.gpus,)) and all(within(of_stages, row).all() for row in rows)


def sample(
    contexts: Sequence[Context], cluster: Cluster, settings: Sequence[Setting], pick: np.random.Generator, tries: int
) -> Iterator[float]:
    """Yield the seconds of random plans that fit."""
    found = tables(contexts, settings)
    for _ in range(tries):
        place = int(pick.integers(len(settings)))
        table, setting, left = found[place], settings[place], found[place].units.copy()
        total = contexts[0].job.global_batch // setting.micro_batch
        rows = []
        for _ in range(int(pick.integers(1, min(int(left.sum()), total) + 1))):
            counts = np.array([pick.integers(0, units + 1) for units in left])
            if 0 < counts.sum() <= table.layers:
                rows.append(counts)
                left -= counts
        if not rows:
            continue
        cuts = np.sort(pick.choice(np.arange(1, total), len(rows) - 1, replace=False))
        sizes = np.diff([0, *cuts, total]).tolist()
        each = [_random_line(table, counts, size, len(rows), pick) for counts, size in zip(rows, sizes, strict=True)]
        chosen = [line for line in each if line is not None]
        made = cost(contexts, cluster, setting, chosen, sizes, {}) if len(chosen) == len(each) else None
        if made is not None:
            yield made[0]


def _random_line(table: Table, counts: np.ndarray, size: int, copies: int, pick: np.random.Generator) -> Line | None:
    present = np.flatnonzero(counts)
    kinds = np.concatenate([np.full(counts[kind], kind) for kind in pick.permutation(present)])
    starts = splits(table.layers, len(kinds))
    starts = starts[pick.integers(len(starts))][None]
    mode = MODES if pick.integers(2) else (MODES[pick.integers(len(MODES))],)
    found = stages(table, kinds, starts, micro_batches=size, copies=copies, modes=mode)
    return line_of(kinds, starts[0], found, 0) if found.fits[0] else None
