"""The search on the machines of one type, and what searches over several of them are asked (`several`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.learned.links import faster_parts
from shardwright.cost.trust.rarity import rare_count_of_gpus
from shardwright.plans.abilities import makers
from shardwright.records import record
from shardwright.search.objective import Objective, Preference
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, searched
from shardwright.search.uniform.baselines import Tried, baselines
from shardwright.search.uniform.best import Entry, preferred
from shardwright.search.uniform.search import UniformResult, search
from shardwright.spec.catalog.frameworks import MEGATRON, OWN
from shardwright.spec.cluster import Cluster

if TYPE_CHECKING:
    from shardwright.search.mixed.branch_and_bound.run import Effort

EXPORTABLE = (MEGATRON,)  # it runs every uniform plan, and those over several types that are one mesh of ranks


@record(kw_only=False)
class OneType:
    """What the machines of one type reach: rules of thumb, the best rows, and the seconds of the former."""

    context: Context
    tried: tuple[Tried, ...]
    found: UniformResult
    baseline_seconds: float

    def preferred(self, within: float) -> list[tuple[Preference, Entry]]:
        """Return the best row of each layout, best first, where values up to `within` are as good."""
        return preferred(self.found.in_question, within, rare_count_of_gpus((self.context.pool.gpu.kind,)))


def search_type(
    context: Context, space: Space, filters: Filters, top: int, indifference: float, longest: float
) -> OneType:
    """Return what plans of up to `longest` seconds on the machines of one type reach, where values up to `indifference`
    above the least are as good; without rules of thumb where that is what has to be beaten."""
    begin = time.perf_counter()
    tried, start = baselines(context) if longest == np.inf else ((), None)
    elapsed = time.perf_counter() - begin
    objective = Objective(model=context.model, job=context.job, pool=context.pool, longest=longest)
    found = search(
        context, searched(context, space), filters, objective, top=top, start=start, indifference=indifference
    )
    return OneType(context, tried, found, elapsed)


@record
class Asked:
    """What a search is asked: on which machines, within which pins and rules, how far above the bound the best plan may
    be, how far above the best one a plan is as good, with which probability plans must fit in memory, how many seconds
    an iteration may take, and how far unequal replicas are looked at: None for as far as suits the cluster's size."""

    cluster: Cluster
    space: Space
    filters: Filters
    gap: float
    indifference: float
    fit: float
    longest: float = np.inf
    effort: Effort | None = None


def least_value(results: Sequence[OneType]) -> float:
    """Return the least that the plans on machines of one type reach, infinite where there are none."""
    return min((least[0] for result in results if (least := result.found.least) is not None), default=np.inf)


def largest_pools(contexts: Sequence[Context]) -> list[Context]:
    """Return one context for each GPU type, that of its largest pool: a stage of a plan names its type alone."""
    best: dict[str, Context] = {}
    for context in contexts:
        name = context.pool.gpu.name
        if name not in best or context.pool.gpus > best[name].pool.gpus:
            best[name] = context
    return list(best.values())


def parts_of(contexts: Sequence[Context]) -> list[Context]:
    """Return a context for each part of a machine that has faster links than the whole (`links.faster_parts`)."""
    return [replace(context, pool=part) for context in contexts for part in faster_parts(context.pool)]


def of_each_maker(contexts: Sequence[Context]) -> list[list[Context]]:
    """Return the contexts that one plan may have together, by the makers of their GPUs."""
    there = makers(context.pool.gpu for context in contexts)
    joined = [[context for context in contexts if makers([context.pool.gpu]) in ((), (maker,))] for maker in there]
    return joined or [list(contexts)]


def looks_at_unequal(able: Sequence[Context], space: Space, filters: Filters) -> bool:
    """Return whether unequal replicas on machines that one plan may have are looked at: `shardwright train` runs them,
    which on one type is in question where it runs the job."""
    in_question = len(able) > 1 or able[0].job.framework == OWN
    if not in_question:
        return False
    from shardwright.search.mixed.restrictions import lacking  # with the tables of the mixed search

    return not lacking(able, space, filters, one_mesh=False)
