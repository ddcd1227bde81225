"""The best plans over several GPU types on one mesh of ranks, as Megatron-LM runs them, by time or by dollars.

Degrees, layers, micro-batches and recomputation are the same in every replica, and every stage is on machines of one
type; what stages hold is as unequal as it need be. So a plan is a setting, a number of copies and one composition, and
the best of all is found by their bounds, best first. Candidates whose plans are above their bound are proven by their
splits, in ranges of how long the longest stage takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from shardwright.arrays import Floats, picked
from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.cost.strategies import row_of
from shardwright.errors import bad
from shardwright.plans.findings import NotCovered
from shardwright.plans.mesh import is_mesh
from shardwright.plans.placement import COPIES_TOGETHER
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.mixed.bounds.instance import HOPELESS, Instance, instances
from shardwright.search.mixed.branch_and_bound.tree import (
    Branched,
    Pruned,
    Rebounded,
    Step,
    TreeNode,
    Undecided,
    least_bound,
)
from shardwright.search.mixed.drafts.draft import Draft, costed, fitting_seconds, under_each_order
from shardwright.search.mixed.entry import MixedOutcome, best_uniform, by_dollars, depth_limits
from shardwright.search.mixed.heuristics.attempts import workshop_of
from shardwright.search.mixed.heuristics.megatron import RULE, uniform_plans
from shardwright.search.mixed.offload import that_may_gain
from shardwright.search.mixed.restrictions import dropped, keeps_pins, narrowed, unruled
from shardwright.search.mixed.subproblem.equal_replicas import (
    Candidate,
    SplitRange,
    by_all_splits,
    candidates,
    halves,
    numbers_of_copies,
)
from shardwright.search.mixed.tables.model_tables import tables
from shardwright.search.mixed.tables.settings import OF_MIXED_PLANS, Setting, of_a_mesh, settings
from shardwright.search.objective import affordable_value
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space
from shardwright.search.space.layouts import runs_data_outermost
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from shardwright.search.mixed.dollars.machines import Bill

LOOKS = 192  # at candidates: by all splits at once, then by plans
PLANS = 4  # looks by all splits that take as long as one by plans, about
HALVED = 48  # ranges that are halved, at most
NOTHING = MixedOutcome(plans=(), bound=np.inf, not_covered=())


@record(kw_only=False)
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
        kept = is_mesh(plan) and keeps_pins(plan, self.space) and not dropped(plan, self.contexts, self.filters)
        return kept and (plan.rank_order == COPIES_TOGETHER or runs_data_outermost(self.contexts[0], row_of(plan))[0])


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
    `mixed_search`.

    Settings that spread context or experts are searched after the others and against their best plan, so that they
    never lead to a slower one. Plans of the others that `shardwright train` runs are among its unequal replicas, and
    are left to that search."""
    space, filters = narrowed(contexts, space, filters)
    usable = unruled(settings(contexts, space, filters.axes), contexts, filters)
    run = _Run(worth_of(contexts), contexts, cluster, space, filters, incumbent)
    apart = [
        [setting for setting in usable if setting.symmetric and setting.spread == spread] for spread in (False, True)
    ]
    if contexts[0].job.framework == OWN:
        apart = [some for some in apart[1:] if some]
    parts = [_of_settings(run, some, gap) for some in apart]
    if not parts:
        return NOTHING
    uniform, deepest = parts[0].uniform, max(part.deepest for part in parts)
    plans = [costed(contexts, plan, run.known) for _, plan in sorted(run.best.values(), key=lambda item: item[0])[:top]]
    return MixedOutcome(
        plans=tuple(plans),
        uniform=None if uniform is None else costed(contexts, uniform, run.known),
        uniform_rule=RULE,
        bound=min(part.bound for part in parts),
        candidates=sum(part.candidates for part in parts),
        costed=run.costed,
        not_covered=(
            *of_a_mesh(contexts, space),
            *OF_MIXED_PLANS,
            NotCovered.STRADDLED_STAGES,
            *depth_limits(deepest, len(contexts[0].model.layers)),
        ),
    )


@record(kw_only=False)
class _Part:
    """What the plans of some settings are not below, in what the job minimises; their uniform plan over all machines,
    if one fits; how many candidates were told apart, and the deepest pipelines of which all are."""

    bound: float
    uniform: Plan | None
    candidates: int
    deepest: int


def _of_settings(run: _Run, some: Sequence[Setting], gap: float) -> _Part:
    """Search the plans of some settings, and keep the best ones in `run`."""
    contexts, space, links = run.contexts, run.space, run.cluster.site_links
    longest, cutoff = (run.worth.longest(value) for value in (run.incumbent, run.incumbent / (1.0 + gap)))
    chosen, _ = that_may_gain(contexts, some, space, links, longest=longest, cutoff=cutoff)
    found_tables = tables(contexts, chosen, links) if chosen else []
    alike = partial(uniform_plans, contexts, run.cluster, chosen, found_tables)
    [everywhere] = alike([range(len(contexts))])
    uniform = best_uniform(contexts, everywhere)
    on_some = alike(_some(len(contexts)), longest)
    for plan in (uniform, *(best_uniform(contexts, plans) for plans in on_some)):
        if plan is not None and run.allowed(plan):
            _keep(run, plan, fitting_seconds(contexts, plan, run.known))
    subproblems = instances(chosen, found_tables, contexts[0].job.global_batch, space)
    longest = HOPELESS * max((instance.quick for instance in subproblems), default=np.inf)
    ways = list(_scouted(run, subproblems, gap, longest))
    run.undecided.clear()
    bound = least_bound(
        [(least, _Open(way)) for least, way in sorted(ways, key=lambda pair: pair[0])],
        partial(_looked_at, run),
        cutoff=lambda: run.incumbent / (1.0 + gap),
        spent=lambda looks: (looks + (PLANS - 1) * len(run.undecided)) / LOOKS,
    )
    bound = bound_by_ranges(run.undecided, run.worth, run.incumbent, min(bound, run.incumbent / (1.0 + gap)))
    deepest = max((instance.depth for instance in subproblems), default=0)
    return _Part(bound, uniform, len(ways), deepest)


def _some(types: int) -> Iterator[tuple[int, ...]]:
    """Yield all choices of two types or more, but not all."""
    for size in range(2, types):
        yield from combinations(range(types), size)


def _scouted(run: _Run, instances: Sequence[Instance], gap: float, longest: float) -> Iterator[tuple[float, Candidate]]:
    """Yield all candidates that may take less than `longest` seconds, with what no plan of each is below. Plans are
    made of the best one of a setting and a number of copies at once, where it looks better than those before, so that
    the next ones are held against good plans."""
    looked = np.inf
    pairs = [(instance, copies) for instance in instances for copies in numbers_of_copies(instance, run.space)]
    for instance, copies in sorted(pairs, key=lambda pair: _of_even_stages(*pair)):
        most = min(longest, run.worth.longest(run.incumbent))
        counts = instance.compositions(run.space)
        counts = picked(counts, (counts > 0).sum(axis=1) > 1)
        ways = [(run.worth.least(way), way) for way in candidates(instance, counts, copies, most)]
        least, best = min(ways, key=lambda pair: pair[0], default=(np.inf, None))
        if best is not None and least < min(looked, run.incumbent / (1.0 + gap)):
            looked = least
            _try(run, best)
        yield from ((value, way) for value, way in ways if np.isfinite(value))


def _of_even_stages(instance: Instance, copies: int) -> float:
    """Return about what the best plan of so many copies takes: pipelines of all units, with their bubble if even."""
    return instance.quick * (1.0 + (int(instance.table.units.sum()) - copies) / instance.total)


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
    instance = way.instance
    for mode in instance.modes:
        workshop = workshop_of(instance, (mode,))
        draft = workshop.draft([(way.counts, way.copies, instance.total // way.copies)], instance.total)
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


@record(kw_only=False)
class Worth:
    """What the job minimises. `machine_gpus` are of each type, [G]; without a `bill` seconds count."""

    job: Job
    machine_gpus: Floats
    bill: Bill | None

    def least(self, way: Candidate) -> float:
        """Return what no plan of a candidate is below, infinite where none keeps deadline and budget."""
        if self.bill is None:
            return way.seconds
        gpus = np.array(way.counts) * way.copies * np.array(way.instance.setting.gpus)
        dollars = way.seconds * float(self.bill.per_second(np.ceil(gpus / self.machine_gpus)[None])[0])
        times = self.job.iterations
        if times is not None:
            late = self.job.deadline_hours is not None
            if late and way.seconds * times > (self.job.deadline_hours or 0.0) * SECONDS_PER_HOUR:
                return np.inf
            if self.job.budget_dollars is not None and dollars * times > self.job.budget_dollars:
                return np.inf
        return way.seconds if self.job.objective == "time" else dollars

    def longest(self, incumbent: float) -> float:
        """Return the seconds from which on no plan is below `incumbent`: it has GPUs of two types at least."""
        if self.bill is None or self.job.objective == "time":
            return incumbent
        types = np.eye(len(self.machine_gpus), dtype=np.int64)
        pairs = np.array([left + other for left, other in combinations(types, 2)])
        return incumbent / float(self.bill.per_second(pairs).min())

    def of(self, plan: Plan, seconds: float, context: Context) -> float | None:
        """Return what a plan that takes `seconds` comes to, None where it misses the deadline or the budget."""
        if self.bill is None:
            return seconds
        return affordable_value(costed([context], plan))


def worth_of(contexts: Sequence[Context]) -> Worth:
    """Return what the job of `contexts` minimises. Raises SpecError for a price that it needs and that is not known."""
    job, pools = contexts[0].job, [context.pool for context in contexts]
    machine_gpus = np.array([pool.gpus_per_node for pool in pools], dtype=float)
    if not by_dollars(job):
        return Worth(job, machine_gpus, None)
    for pool in pools:
        if pool.dollars_per_node_hour is None:
            hint = "give price_per_hour for the machines in the cluster file"
            raise bad(f"price of {pool.machines}", "is not known, but the objective or the budget needs it", hint)
    from shardwright.search.mixed.dollars.machines import bill_of  # which a search for time does without

    return Worth(job, machine_gpus, bill_of(contexts))


def bound_by_ranges(
    undecided: Sequence[tuple[float, Candidate]], worth: Worth, incumbent: float, cutoff: float
) -> float:
    """Return what no plan of candidates is below, each of which has a bound already, the `cutoff` at most: all in what
    the job minimises, as `incumbent`."""
    return least_bound(
        [(least, SplitRange(way)) for least, way in undecided],
        partial(_halved, worth, worth.longest(incumbent)),
        cutoff=lambda: cutoff,
        spent=lambda halved: halved / HALVED,
    )


def _halved(worth: Worth, seconds: float, node: TreeNode[SplitRange]) -> Step[SplitRange]:
    """Bound both halves of a range, for plans that take less than `seconds`."""
    closer = [(max(node.bound, coarse(worth.least(half.way))), half) for half in halves(node.part, seconds)]
    return Branched(closer) if closer else Undecided(node.bound)
