"""One ranking of the searches for several combinations of the trainer's options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.plans.findings import Rejection, ordered
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Ranking, SearchReport
from shardwright.search.account import gap_of
from shardwright.search.mixed.entry import affordable_value
from shardwright.search.ranked import better_than, in_order, with_bound


def best_of(rankings: Sequence[Ranking], top: int) -> Ranking:
    """Return the ranking of the combination whose best plan is best, with the `top` best plans of all and the account
    of all searches; where none has a plan, the first. Plans that are as good are ordered as in each ranking."""
    if len(rankings) == 1:
        return rankings[0]
    indifference = rankings[0].search.indifference
    plans = [plan for ranking in rankings for plan in ranking.plans]
    every = [*plans, *(ranking.passed_over.plan for ranking in rankings if ranking.passed_over)]
    plans = in_order(plans, min(map(_value, every), default=np.inf), indifference)
    first = next((ranking for ranking in rankings if plans and plans[0] in ranking.plans), rankings[0])
    report = replace(_together([ranking.search for ranking in rankings]), not_covered=first.search.not_covered)
    if not first.plans:
        return replace(first, search=report)
    bound, value = min(_bound(ranking) for ranking in rankings if ranking.plans), _value(plans[0])
    fastest = min(every, key=_value)
    passed = better_than(plans[0], value, fastest, _value(fastest)) if _value(fastest) < value else None
    plans = plans[:top]
    if any(ranking.search.gap is not None for ranking in rankings):
        report = replace(report, gap=gap_of(value, bound))
    if any(ranking.search.lower_bound_dollars is not None for ranking in rankings):
        report = replace(report, lower_bound_dollars=bound)
    if plans[0].job.objective == "time":
        plans = [with_bound(plan, bound) for plan in plans]
    return replace(first, plans=tuple(plans), search=report, passed_over=passed)


def _value(plan: Plan) -> float:
    value = affordable_value(plan)
    return np.inf if value is None else value


def _bound(ranking: Ranking) -> float:
    """Return what no plan of a search that found one beats in what the job minimises."""
    best, dollars = ranking.best, ranking.search.lower_bound_dollars
    if best.job.objective == "time" and best.prediction is not None:
        return best.prediction.lower_bound_seconds or 0.0
    return affordable_value(best) or np.inf if dollars is None else dollars


def _together(reports: Sequence[SearchReport]) -> SearchReport:
    rejected: Counter[Rejection] = Counter()
    phases: Counter[str] = Counter()
    for report in reports:
        rejected.update(dict(report.rejected))
        phases.update(dict(report.phases))
    return SearchReport(
        candidates=sum(report.candidates for report in reports),
        costed=sum(report.costed for report in reports),
        seconds=sum(report.seconds for report in reports),
        rejected=ordered(rejected),
        phases=tuple(phases.items()),
        interrupted=any(report.interrupted for report in reports),
        indifference=reports[0].indifference,
    )
