"""A table of a site's own runs as what a calibration is made of: plans and what they took."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.cost.calibrate import Measured
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.strategies import plan_of_row, strategies
from shardwright.errors import Problem, reject
from shardwright.plans.plan import Plan
from shardwright.spec.cluster import Cluster
from shardwright.validation.case import Case
from shardwright.validation.forecast import at_level, forecast
from shardwright.validation.outcome import prepared
from shardwright.validation.runs import PublishedRun


def measured_runs(runs: Sequence[PublishedRun], efficiency: Efficiency, name: str) -> tuple[Measured, ...]:
    """Return the plans of a table's runs with their seconds; `name` stands for the table in messages. Raises SpecError
    with every row that cannot be predicted, and why, or that has no time."""
    problems: list[Problem] = []
    cases: list[Case] = []
    for number, run in enumerate(runs, start=2):
        outcome = prepared(run, failed=False, quality="", kinds=())
        if outcome.case is None or not run.seconds:
            why = outcome.skipped.words if outcome.skipped else "it has no time"
            problems.append(Problem(f"{name}, line {number}", why, "complete the row, or leave it out"))
        else:
            cases.append(outcome.case)
    reject(problems)
    plans = plans_of(cases, efficiency)
    return tuple(
        Measured(plan=plan, seconds=case.run.seconds or 0.0, name=f"{name}, run {case.run.row_id}")
        for case, plan in zip(cases, plans, strict=True)
    )


def plans_of(cases: Sequence[Case], efficiency: Efficiency) -> tuple[Plan, ...]:
    """Return the plans that some cases ran, with the recomputation that `forecast` takes where none is published."""
    levels = forecast(cases, efficiency).recompute.tolist()
    return tuple(_plan(case, level) for case, level in zip(cases, levels, strict=True))


def _plan(case: Case, level: int) -> Plan:
    if case.plan is not None:
        return case.plan
    row = strategies([at_level(case, level)])
    return plan_of_row(row, case.model, case.job, Cluster(pools=(case.pool,)), case.pool.gpu.name)
