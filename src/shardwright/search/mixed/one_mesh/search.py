"""The best plans over several GPU types that one mesh of ranks can run, by time or by dollars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.plans.findings import NotCovered
from shardwright.plans.mesh import is_mesh
from shardwright.plans.plan import Plan
from shardwright.search.mixed.bounds.instance import HOPELESS, Instance, instances
from shardwright.search.mixed.branch_and_bound.tree import Pruned, Rebounded, Step, TreeNode, least_bound
from shardwright.search.mixed.drafts.costing import costed, fitting_seconds, under_each_order
from shardwright.search.mixed.drafts.draft import Draft
from shardwright.search.mixed.entry import (
    MixedOutcome,
    best_uniform,
    depth_limits,
)
from shardwright.search.mixed.heuristics.attempts import workshop_of
from shardwright.search.mixed.heuristics.megatron import RULE, uniform_plans
from shardwright.search.mixed.offload import that_may_gain
from shardwright.search.mixed.one_mesh.candidates import Candidate, by_all_splits, candidates, numbers_of_copies
from shardwright.search.mixed.one_mesh.closer import bound_by_ranges
from shardwright.search.mixed.one_mesh.worth import Worth, worth_of
from shardwright.search.mixed.restrictions import dropped, keeps_pins, narrowed, unruled
from shardwright.search.mixed.tables.model_tables import tables
from shardwright.search.mixed.tables.settings import OF_MIXED_PLANS, in_no_setting, settings
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space
from shardwright.spec.cluster import Cluster

LOOKS = 96  # at candidates: by all splits at once, then by plans


@dataclass(frozen=True, slots=True)
class _Open:
    """A candidate of which no plans were made yet; `bounded` by all of its splits, or by the inequalities alone."""

    way: Candidate
    bounded: bool = False


@dataclass(slots=True)
class _Run:
    """`incumbent` and `best` are in what the job minimises; candidates of which plans were made are `undecided`."""

    worth: Worth
    contexts: Sequence[Context]
    cluster: Cluster
    space: Space
    filters: Filters
    incumbent: float
    known: Known = field(default_factory=dict)
    best: dict[tuple[object, ...], tuple[float, Plan]] = field(default_factory=dict)
    tried: set[tuple[object, ...]] = field(default_factory=set)
    undecided: list[tuple[float, Candidate]] = field(default_factory=list)
    costed: int = 0

    def allowed(self, plan: Plan) -> bool:
        """Return whether a mesh can run a plan, and pins and rules let it pass."""
        return is_mesh(plan) and keeps_pins(plan, self.space) and not dropped(plan, self.contexts, self.filters)


def mesh_search(
    contexts: Sequence[Context],
    cluster: Cluster,
    space: Space,
    filters: Filters,
    *,
    gap: float,
    incumbent: float,
    top: int,
) -> MixedOutcome:
    """Return the best plans over all `contexts` together that one mesh of ranks can run, priced as the job's framework
    runs them, with the seconds or dollars that none of their space beats. `incumbent` and `gap` are as in
    `mixed_search`."""
    space, filters = narrowed(contexts, space, filters)
    each = unruled(settings(contexts, space, filters.axes), contexts, filters)
    run = _Run(worth_of(contexts), contexts, cluster, space, filters, incumbent)
    chosen, _ = that_may_gain(
        contexts,
        [setting for setting in each if setting.symmetric],
        space,
        cluster.site_links,
        longest=run.worth.longest(incumbent),
        cutoff=run.worth.longest(incumbent / (1.0 + gap)),
    )
    found_tables = tables(contexts, chosen, cluster.site_links) if chosen else []
    alike = partial(uniform_plans, contexts, cluster, chosen, found_tables)
    [everywhere] = alike([range(len(contexts))])
    uniform = best_uniform(contexts, everywhere)
    on_some = alike(_some(len(contexts)), run.worth.longest(run.incumbent))
    for plan in (uniform, *(best_uniform(contexts, plans) for plans in on_some)):
        if plan is not None and run.allowed(plan):
            _keep(run, plan, fitting_seconds(contexts, plan, run.known))
    found = instances(chosen, found_tables, contexts[0].job.global_batch, space)
    longest = HOPELESS * max((each.quick for each in found), default=np.inf)
    ways = list(_scouted(run, found, gap, longest))
    bound = least_bound(
        [(least, _Open(way)) for least, way in sorted(ways, key=lambda pair: pair[0])],
        partial(_looked_at, run),
        cutoff=lambda: run.incumbent / (1.0 + gap),
        spent=lambda looks: looks / LOOKS,
    )
    bound = bound_by_ranges(run.undecided, run.worth, run.incumbent, min(bound, run.incumbent / (1.0 + gap)))
    plans = [costed(contexts, plan, run.known) for _, plan in sorted(run.best.values(), key=lambda item: item[0])[:top]]
    return MixedOutcome(
        plans=tuple(plans),
        uniform=None if uniform is None else costed(contexts, uniform, run.known),
        uniform_rule=RULE,
        bound=bound,
        candidates=len(ways),
        costed=run.costed,
        not_covered=(
            *in_no_setting(space),
            *OF_MIXED_PLANS,
            NotCovered.STRADDLED_STAGES,
            *depth_limits(max((each.depth for each in found), default=0), len(contexts[0].model.layers)),
        ),
    )


def _some(types: int) -> Iterator[tuple[int, ...]]:
    """Yield all choices of two types or more, but not all."""
    for size in range(2, types):
        yield from combinations(range(types), size)


def _scouted(run: _Run, found: Sequence[Instance], gap: float, longest: float) -> Iterator[tuple[float, Candidate]]:
    """Yield all candidates that may take less than `longest` seconds, with what no plan of each is below. Plans are
    made of the best one of a setting and a number of copies at once, where it looks better than those before, so that
    the next ones are held against good plans."""
    looked = np.inf
    for each in found:
        for copies in numbers_of_copies(each, run.space):
            most = min(longest, run.worth.longest(run.incumbent))
            ways = [(run.worth.least(way), way) for way in candidates(each, run.space, most, copies)]
            least, best = min(ways, key=lambda pair: pair[0], default=(np.inf, None))
            if best is not None and least < min(looked, run.incumbent / (1.0 + gap)):
                looked = least
                _try(run, best)
            yield from ((value, way) for value, way in ways if np.isfinite(value))


def _looked_at(run: _Run, node: TreeNode[_Open]) -> Step[_Open]:
    """Bound a candidate by all of its splits. Of one that has been, make plans, and leave it for closer bounds."""
    way = node.part.way
    if node.part.bounded:
        _try(run, way)
        run.undecided.append((node.bound, way))
        return Pruned()
    closer = by_all_splits(way, run.worth.longest(run.incumbent))
    return Rebounded(max(node.bound, run.worth.least(closer)), _Open(closer, bounded=True))


def _try(run: _Run, way: Candidate) -> None:
    """Cost the plans of a composition exactly, unless that has been done."""
    key = (way.instance.setting, way.counts, way.copies)
    if key in run.tried:
        return
    run.tried.add(key)
    for draft in _drafts(way):
        for plan, seconds in under_each_order(run.contexts, run.cluster, draft, run.known, run.allowed):
            run.costed += 1
            _keep(run, plan, seconds)


def _keep(run: _Run, plan: Plan, seconds: float | None) -> None:
    key = (plan.replicas, plan.micro_batch)
    value = None if seconds is None else run.worth.of(plan, seconds, run.contexts[0])
    if value is not None and (key not in run.best or value < run.best[key][0]):
        run.best[key] = (value, plan)
        run.incumbent = min(run.incumbent, value)


def _drafts(way: Candidate) -> Iterator[Draft]:
    """Yield the best draft of a composition with each recomputation, the same in all stages."""
    each = way.instance
    for mode in each.modes:
        workshop = workshop_of(each, (mode,))
        draft = workshop.draft([(way.counts, way.copies, each.total // way.copies)], each.total)
        if draft is not None:
            yield _recomputing_alike(draft)


def _recomputing_alike(draft: Draft) -> Draft:
    """Return a draft in which every stage recomputes as many layers as the one that has to recompute most."""
    most = max(layers for line, _, _ in draft.replicas for _, layers in line.recompute)
    replicas = tuple(
        (replace(line, recompute=tuple((mode, most) for mode, _ in line.recompute)), count, size)
        for line, count, size in draft.replicas
    )
    return replace(draft, replicas=replicas)
