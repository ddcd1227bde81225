"""What a search over numbers of machines looks for and has found so far: plans with their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as dataclass_field

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.plans.plan import Plan
from shardwright.rounding import coarse, weighed
from shardwright.search.mixed.branch_and_bound.fastest import search
from shardwright.search.mixed.branch_and_bound.run import MixedProblem
from shardwright.search.mixed.dollars.machines import Bill, Boxes
from shardwright.search.mixed.drafts.draft import Draft, under_each_order
from shardwright.search.mixed.heuristics.attempts import Drafter

KEPT = 3  # of the fastest plans of a search by time


@dataclass(slots=True)
class Ledger:
    """What is searched for plans of least value, and what has been found of it: a drafter for each instance, with the
    units of a machine, `per_machine` [S, G]; how a plan is costed and valued; the value to beat, `incumbent`."""

    problem: MixedProblem
    bill: Bill
    allowed: Callable[[Plan], bool]
    costed_plan: Callable[[Plan], Plan]
    value: Callable[[Plan], float | None]
    incumbent: float
    drafters: list[Drafter]
    per_machine: Ints
    best: dict[tuple[object, ...], tuple[float, Plan]] = dataclass_field(default_factory=dict)
    candidates: int = 0
    costed: int = 0
    regions: int = 0

    @property
    def cutoff(self) -> float:
        """What a plan must beat to be better by more than the gap."""
        return self.incumbent / (1.0 + self.problem.gap)

    def seconds(self, boxes: Boxes) -> Floats:
        """Return within how many seconds a plan in each box is better by more than the gap and keeps the limits."""
        return np.asarray(np.minimum(self.cutoff / boxes.slope, boxes.longest))


def quick_seconds(run: Ledger, machines: Ints) -> Floats:
    """Return seconds that no plan of a setting on so many machines [K, G] beats, [S, K]."""
    settings = [by.instance for by in run.drafters]
    speeds = np.array([instance.speeds / np.maximum(instance.table.units, 1) for instance in settings])
    work = np.array([instance.total * instance.layers.total for instance in settings])
    with np.errstate(divide="ignore"):
        pace = [weighed(machines, rates) for rates in run.per_machine * speeds]
        return coarse(work[:, None] / np.array(pace).reshape(len(work), len(machines)))


def _money(run: Ledger) -> float:
    """Return the dollars that an iteration may cost at most to be better by more than the gap and keep the budget."""
    job = run.bill.job
    most = run.cutoff if job.objective == "cost" else np.inf
    if job.budget_dollars is not None and job.iterations is not None:
        most = min(most, job.budget_dollars / job.iterations)
    return most


def share(run: Ledger, place: int) -> Floats:
    """Return what a second of a unit of each type is of the dollars that there are for one micro-batch, [G]."""
    per_unit = run.bill.part / np.maximum(run.per_machine[place], 1)
    return np.asarray(per_unit * (run.drafters[place].instance.total / _money(run)))


def by_time(run: Ledger, problem: MixedProblem, longest: float) -> float:
    """Search by time, and keep the fastest plans. Return the seconds that none beats."""
    result = search(problem, longest, run.allowed)
    run.candidates += result.candidates
    run.costed += result.costed
    for _, plan in result.plans[:KEPT]:
        keep(run, plan)
    return result.bound


def offer(run: Ledger, draft: Draft, longest: float) -> float:
    """Cost a draft exactly under every rank order and keep the plans of less than `longest` seconds. Return its
    seconds: infinite where it does not fit, the draft's own where these are too many."""
    if draft.seconds >= longest:
        return draft.seconds
    best, problem = np.inf, run.problem
    for plan, seconds in under_each_order(problem.contexts, problem.cluster, draft, problem.known, run.allowed):
        run.costed += 1
        if seconds is not None:
            best = min(best, seconds)
            if seconds < longest:
                keep(run, plan)
    return best


def keep(run: Ledger, plan: Plan) -> None:
    """Keep a plan with its value if it keeps the limits; of those that differ in rank order only the better one."""
    plan = run.costed_plan(plan)
    worth = run.value(plan)
    if worth is None:
        return
    key = (plan.replicas, plan.micro_batch)
    if key not in run.best or worth < run.best[key][0]:
        run.best[key] = (worth, plan)
    run.incumbent = min(run.incumbent, worth)
