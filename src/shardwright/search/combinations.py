"""One ranking of the searches for several combinations of the trainer's options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.plans.findings import Rejection
from shardwright.plans.ranking import Ranking, SearchReport
from shardwright.search.summary import weighed_value, with_bound


def best_of(rankings: Sequence[Ranking], top: int) -> Ranking:
    """Return the ranking of the combination whose best plan is best, with the `top` best plans of all and the account
    of all searches; where none has a plan, the first. Doubts count in the order, as in each ranking."""
    if len(rankings) == 1:
        return rankings[0]
    report = _together([ranking.search for ranking in rankings])
    first = min(rankings, key=lambda ranking: weighed_value(ranking.plans[0]) if ranking.plans else np.inf)
    every = sorted((plan for ranking in rankings for plan in ranking.plans), key=weighed_value)
    plans, bounds = every[:top], [plan.prediction.lower_bound_seconds for plan in every if plan.prediction]
    if plans and plans[0].job.objective == "time":
        plans = [with_bound(plan, min(bounds)) for plan in plans]
    return replace(first, plans=tuple(plans), search=replace(report, not_covered=first.search.not_covered))


def _together(reports: Sequence[SearchReport]) -> SearchReport:
    rejected: Counter[Rejection] = Counter()
    phases: Counter[str] = Counter()
    for report in reports:
        rejected.update(dict(report.rejected))
        phases.update(dict(report.phases))
    gaps = [report.gap for report in reports if report.gap is not None]
    dollars = [report.lower_bound_dollars for report in reports if report.lower_bound_dollars is not None]
    return SearchReport(
        candidates=sum(report.candidates for report in reports),
        costed=sum(report.costed for report in reports),
        seconds=sum(report.seconds for report in reports),
        rejected=tuple(rejected.items()),
        phases=tuple(phases.items()),
        gap=max(gaps, default=None),
        lower_bound_dollars=min(dollars, default=None),
    )
