"""The mixed search: branch and bound over settings, numbers of replicas and what is left after the pipeline.

Each region of a setting has a lower bound, from the integer program over its compositions. The region of least bound
comes first: plans are made of its solution, then it is split, until the best plan is within the gap of the least bound.
What the search returns is exact under the cost model; the bound holds for the space it declares.

One degree of tensor parallelism for all GPU types is searched first, then unequal ones, if the space has them
(`search_degrees`). The second search has to beat the plans of the first, which is as if there were no unequal degrees:
so these never lead to a slower plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial

import numpy as np

from shardwright.arrays import Ints
from shardwright.plans.plan import Plan
from shardwright.progress import stopped, tell_best
from shardwright.records import record
from shardwright.search.mixed.bounds.instance import HOPELESS, instances
from shardwright.search.mixed.branch_and_bound.run import (
    Effort,
    Incumbents,
    MixedProblem,
    MixedResult,
    Run,
    attempted,
    has_few_units,
)
from shardwright.search.mixed.branch_and_bound.scouting import each_type_alone, numbered, scouted, whole_setting
from shardwright.search.mixed.branch_and_bound.tree import (
    Branched,
    Pruned,
    Rebounded,
    Step,
    TreeNode,
    Undecided,
    least_bound,
)
from shardwright.search.mixed.heuristics.attempts import Drafter, drafter, solve_within
from shardwright.search.mixed.heuristics.simple_plans import equal_replicas
from shardwright.search.mixed.master.answer import Infeasible, Solved
from shardwright.search.mixed.master.column_pool import ColumnPool, RuledOut
from shardwright.search.mixed.master.regions import Bounded, bounded, is_wide, parts
from shardwright.search.mixed.tables.region import Region

HELPS = 0.05  # part of the gap by which a split that helps raises the bound
FAR = 1.5  # times the bound of a region, beyond which plans are made before its numbers of replicas are looked at
CLOSER = 9  # times that the integer program of a region is solved to raise its bound
CLOSE = 0.015  # part of the gap to which it is raised
FINEST = 0.003  # least gap that this aims at
LEAST_GAP = 2.5e-5  # below which a plan counts as the best


@record(kw_only=False)
class _Part:
    """A region of an instance: `counts` are its compositions (None: all), `columns` those that prove its own bound
    (None: it has that of the region it is part of). `before` is the bound of the parent; `idle` says how many splits in
    a row did not raise the bound; `ruled_out` is what the parent ruled out, which need not be looked at again. Its
    integer program was `asked` for higher bounds, and may have a solution within `open_at` seconds. `whole` is the
    bound of the setting where units are few."""

    by: Drafter
    region: Region
    counts: Ints | None = None
    columns: ColumnPool | None = None
    before: float = 0.0
    idle: int = 0
    ruled_out: RuledOut = field(default_factory=dict)
    asked: int = 0
    open_at: float = np.inf
    whole: Bounded | None = None


def search(problem: MixedProblem, incumbent: float, allowed: Callable[[Plan], bool]) -> MixedResult:
    """Return the best plans that are `allowed`, and the least time that no plan of the space can beat; `incumbent` are
    the seconds to beat."""
    problem = replace(problem, gap=max(problem.gap, LEAST_GAP))
    subproblems = instances(problem.settings, problem.tables, problem.contexts[0].job.global_batch, problem.space)
    longest = min(incumbent, HOPELESS * max((instance.quick for instance in subproblems), default=np.inf))
    drafters = [drafter(instance) for instance in subproblems]
    run = Run(problem, Incumbents(problem.contexts, problem.cluster, problem.known, allowed, longest), drafters)
    for by, region in scouted(run, drafters, whole_setting):
        equal_replicas(by, region, run.incumbent, run.incumbents.offer)
    bound = least_bound(
        [(by.instance.quick, _Part(by, region)) for by in drafters for region in by.instance.roots(problem.space)],
        partial(_processed, run),
        cutoff=lambda: run.cutoff,
        spent=lambda _: problem.effort.spent(run.regions, run.gaps),
    )
    if (
        bound < run.cutoff and not stopped()
    ):  # what was put off, and the plainest plans of settings that were not scouted
        for by, whole in run.wholes:
            _begin(run, by, whole)
            equal_replicas(by, whole.columns.region, run.incumbent, run.incumbents.offer)
        each_type_alone(run, drafters)
    return MixedResult(
        plans=tuple(sorted(run.incumbents.best.values(), key=lambda item: item[0])),
        bound=bound,
        candidates=run.candidates,
        costed=run.incumbents.costed,
        deepest=max((instance.depth for instance in subproblems), default=0),
    )


def _processed(run: Run, node: TreeNode[_Part]) -> Step[_Part]:
    """Bound a region that has no bound of its own yet. Of one that has, make plans, and branch on its parts."""
    part = node.part
    if part.columns is None:
        return _bounded(run, node)
    if part.asked:
        return _raised(run, node)
    if _is_preliminary(part):
        if run.cutoff > FAR * node.bound:
            _begin(run, part.by, part.whole)
        return _branched(run, node, part.columns, _first_parts(part, run.incumbent), part.idle)
    run.gaps.append(float(np.log(run.incumbent / node.proven)))
    if run.incumbents.best:
        tell_best(run.incumbent, node.proven)
    effort, gap = run.problem.effort, run.problem.gap
    _begin(run, part.by, part.whole)
    attempted(run, part.by, part.region, node.bound, part.columns)
    near = 0.0 if has_few_units(part.by.instance) else effort.near
    if node.bound >= run.cutoff or (node.bound >= near * run.cutoff and _excluded(run, part, run.cutoff)):
        return Pruned()
    idle = 0 if node.bound > part.before * (1.0 + HELPS * gap) else part.idle + 1
    split = parts(part.by.instance, part.region, run.incumbent) if idle < effort.idle else []
    if not split:
        return _raised(run, node)
    return _branched(run, node, part.columns, split, idle)


def _begin(run: Run, by: Drafter, whole: Bounded | None) -> None:
    """Make the first plans of numbers of replicas, and of a `whole` setting of few units. Where what is known is good,
    this waits for a number that may be better by all splits of its compositions: often there is none."""
    if whole is None or by in run.begun:
        return
    if not run.begun:
        for _ in scouted(run, run.drafters, numbered):
            pass
    run.begun.add(by)
    attempted(run, by, whole.columns.region, whole.seconds, whole.columns)


def _branched(
    run: Run, node: TreeNode[_Part], columns: ColumnPool, split: Sequence[Region], idle: int
) -> Branched[_Part]:
    """Return the parts `split` of a region, with the compositions that its `columns` leave."""
    counts, by = columns.counts_within(run.cutoff), node.part.by
    child = partial(
        _Part, by, counts=counts, before=node.bound, idle=idle, ruled_out=columns.ruled_out, whole=node.part.whole
    )
    return Branched([(node.bound, child(region)) for region in split])


def _first_parts(part: _Part, incumbent: float) -> list[Region]:
    """Return the parts of a preliminary region. Several replicas of whatever types say as little as all: they are split
    at once."""
    split, instance = parts(part.by.instance, part.region, incumbent), part.by.instance
    return [
        piece
        for region in split
        for piece in (parts(instance, region, incumbent) if _says_little(region) else [region])
    ]


def _says_little(region: Region) -> bool:
    return is_wide(region) and not region.used


def _is_preliminary(part: _Part) -> bool:
    """Return whether a region has too many numbers of replicas to say much of any: where units are few, each number has
    other compositions than the next one."""
    return has_few_units(part.by.instance) and is_wide(part.region)


def _bounded(run: Run, node: TreeNode[_Part]) -> Step[_Part]:
    """Give a region its own bound."""
    part, instance = node.part, node.part.by.instance
    counts = instance.compositions(run.problem.space) if part.counts is None else part.counts
    if instance.quickest(part.region) >= run.cutoff:
        return Pruned()
    run.regions += 1
    run.candidates += len(counts)
    preliminary, is_root = _is_preliminary(part), part.counts is None
    relaxed = bounded(
        instance,
        part.region,
        counts,
        known=node.bound,
        cutoff=run.cutoff,
        longest=run.incumbent,
        ruled_out=part.ruled_out,
        closely=has_few_units(instance) and not preliminary,
    )
    if isinstance(relaxed, Infeasible):
        return Pruned()
    part = replace(part, columns=relaxed.columns)
    if preliminary and is_root:
        run.wholes.append((part.by, relaxed))
        part = replace(part, whole=relaxed)
    return Rebounded(relaxed.seconds, part)


def _raised(run: Run, node: TreeNode[_Part]) -> Step[_Part]:
    """Raise the bound of a region that is not split any more by its integer program, a step at a time: others may come
    first then. Where another one is left at a lower bound, that is what is proven of all."""
    part, low, high = node.part, node.bound, min(node.part.open_at, run.cutoff)
    close = high - low <= CLOSE * max(run.problem.gap, FINEST) * high
    if close or part.asked == CLOSER or node.proven < low:
        return Undecided(low)
    part, middle = replace(part, asked=part.asked + 1), 0.5 * (low + high)
    if _excluded(run, part, middle):
        return Rebounded(middle, part)
    return Rebounded(low, replace(part, open_at=middle))


def _excluded(run: Run, part: _Part, seconds: float) -> bool:
    """Solve the integer program of a region. Return whether it has no solution within `seconds`; offer one it has."""
    assert part.columns is not None, "it has been bounded"
    answer = solve_within(part.by, part.region, part.columns, seconds)
    if isinstance(answer, Solved):
        run.incumbents.offer(answer.solution)
    return isinstance(answer, Infeasible)


def search_degrees(problem: MixedProblem, incumbent: float, allowed: Callable[[Plan], bool]) -> MixedResult:
    """Return what `search` finds in the settings of equal and of unequal degrees, and the bound of both."""
    alike = search(_part(problem, symmetric=True), incumbent, allowed)
    rest = _part(problem, symmetric=False)
    if not rest.settings:
        return alike
    best = min((seconds for seconds, _ in alike.plans), default=incumbent)
    return _joined(alike, search(replace(rest, effort=_more(rest)), min(best, incumbent), allowed))


def _more(problem: MixedProblem) -> Effort:
    """Return the effort for many settings, each of which has to be looked at before any other is."""
    effort, count = problem.effort, len(problem.settings)
    return replace(effort, regions=effort.regions + 2 * count, patience=effort.patience + count // 2)


def _part(problem: MixedProblem, *, symmetric: bool) -> MixedProblem:
    pairs = zip(problem.settings, problem.tables, strict=True)
    chosen = [(setting, table) for setting, table in pairs if setting.symmetric == symmetric]
    return replace(
        problem,
        settings=tuple(setting for setting, _ in chosen),
        tables=tuple(table for _, table in chosen),
    )


def _joined(first: MixedResult, other: MixedResult) -> MixedResult:
    plans = {(plan.replicas, plan.micro_batch): (seconds, plan) for seconds, plan in (*other.plans, *first.plans)}
    return MixedResult(
        plans=tuple(sorted(plans.values(), key=lambda item: item[0])),
        bound=min(first.bound, other.bound),
        candidates=first.candidates + other.candidates,
        costed=first.costed + other.costed,
        deepest=max(first.deepest, other.deepest),
    )
