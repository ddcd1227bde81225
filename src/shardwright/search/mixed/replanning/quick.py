"""Good plans of one setting in little time, without a proof of how good they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.cost.iteration.mixed import Mixed
from shardwright.plans.check import check
from shardwright.plans.plan import Plan, RankOrder
from shardwright.search.mixed.drafts.costing import fitting
from shardwright.search.mixed.drafts.draft import Draft, plan_of
from shardwright.search.mixed.heuristics.attempts import Drafter, attempt
from shardwright.search.mixed.master.column_pool import ColumnPool
from shardwright.search.mixed.master.regions import shortest
from shardwright.search.mixed.tables.settings import Setting
from shardwright.search.space.axes import Space
from shardwright.spec.cluster import Cluster

DRAFTS = 4  # made of the solutions of the integer program, shared among the types: more types take longer
GAP = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanTask:
    """What is looked for: plans of one setting, its instance, on a cluster, with a context for each GPU type."""

    contexts: tuple[Context, ...]
    cluster: Cluster
    by: Drafter
    rank_order: RankOrder
    known: Known

    @property
    def setting(self) -> Setting:
        return self.by.instance.setting


def quick_plan(task: ReplanTask, incumbent: float, hints: Sequence[tuple[int, ...]]) -> tuple[Plan, Mixed] | None:
    """Return a plan that takes less than `incumbent` seconds, with its iteration, if one is found. `hints` are
    compositions that it may have, beside short ones and those of one type or of all in proportion."""
    best: list[tuple[Plan, Mixed]] = []
    drafts = 0

    def least() -> float:
        return best[-1][1].seconds if best else incumbent

    def limit() -> float:
        return least() if drafts < max(DRAFTS // len(task.contexts), 1) else 0.0

    def offer(draft: Draft) -> float:
        nonlocal drafts
        drafts += 1
        if draft.seconds >= least():
            return draft.seconds
        plan = plan_of(task.contexts, task.cluster, draft, rank_order=task.rank_order)
        found = None if check(plan) else fitting(task.contexts, plan, task.known)
        if found is None:
            return np.inf
        if found.seconds < least():
            best.append((plan, found))
        return found.seconds

    each = task.by.instance
    region, counts = each.roots(Space())[0], each.compositions(Space())
    hinted = [counts[(counts == np.array(hint)).all(axis=1)] for hint in hints]
    chosen = np.concatenate([counts[each.samples(counts)], *hinted])
    columns = ColumnPool(each, region, chosen, incumbent, ordered=False)
    if each.quickest(region) < incumbent and columns.limit(incumbent) >= each.total:
        low, _ = shortest(columns.limit, each.total, each.quick, incumbent)
        if low * (1.0 + GAP) < incumbent:
            attempt(task.by, region, low, columns, offer, limit, GAP)
    return best[-1] if best else None
