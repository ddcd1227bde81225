"""Random plans trained, and held against one process."""

from __future__ import annotations

from dataclasses import replace

from tests.runtime.equal import ADAM, SGD, require_equal
from tests.runtime.reference import reference_run
from tests.runtime.workers import Case, Outcome

from shardwright import Plan, check
from shardwright.runtime.layout.limits import unrunnable
from shardwright.runtime.state.recipe import Recipe

STEPS, SEED, END = 3, 7, 5
# Of 2,000 plans some have gradients so small that Adam's usual epsilon turns their rounding into steps: what differs
# falls as epsilon rises, tenfold with each tenfold, down to what it is under SGD.
SMOOTH = replace(ADAM, epsilon=1e-4)
RECIPES = {"sgd": SGD, "adam": SMOOTH, "adam8bit": SMOOTH, "muon": replace(SMOOTH, method="muon")}


def runnable(plan: Plan) -> bool:
    return not check(plan) and not unrunnable(plan)


def recipe_of(plan: Plan) -> Recipe:
    """Return how a random plan is trained: by Adam where its moments are in 8 bits, whose blocks tensor parallelism
    cuts, so that one process has others."""
    return RECIPES[plan.job.optimizer]


def end_of(seed: int) -> int | None:
    """Return the token that ends a document, in a fifth of all plans."""
    return END if seed % 5 == 0 else None


def case_of(seed: int, plan: Plan) -> Case:
    """Return the plan that a seed gave as a case of a pool of processes."""
    merged = {"largest_merged": 1} if seed % 2 else {}
    return Case(str(seed), plan, recipe_of(plan), steps=STEPS, seed=SEED, end=end_of(seed), **merged)


def require_like_one_process(seed: int, plan: Plan, outcome: Outcome) -> None:
    """Raise AssertionError where the plan that a seed gave has not trained like one process. Muon brings small singular
    values up some 500 times (`muon.COEFFICIENTS`), and what was rounded with them."""
    expected = reference_run(plan, recipe_of(plan), steps=STEPS, seed=SEED, end=end_of(seed))
    require_equal(outcome, expected, rounded=plan.job.optimizer == "muon")
