"""Random questions of all kinds (`random_problems`) against what holds of any answer (`laws`). A dozen in every run; all
500 at night, each held against more moves and two of the five laws of alike questions."""

from __future__ import annotations

from functools import cache

import pytest
from tests.nightly import nightly
from tests.search.laws import LAWS, below_the_bound, priced_alike
from tests.search.random_problems import QUICK, SEEDS, Problem, problem

from shardwright import Ranking, SpecError

COUNTED = (*range(162), *range(290, 367))  # looked at with the search as it was when the seeds were committed
FLOOR = 213  # of these had a plan that somebody runs; 8 more were of adapters, which `train` was asked for and has not
ONCE_BELOW = (93, 224)  # groups that leave GPUs idle, empty stages
LARGE_ONCE_BELOW = (248, 278)  # rank orders, ZeRO-3 in a pipeline
QUICK_MOVES, MOVES = 40, 600


@cache
def answered(seed: int) -> tuple[Problem, Ranking | None]:
    """Return a random problem with what the planner answers, None where it refuses the question in words."""
    question = problem(seed)
    try:
        return question, question.planned()
    except SpecError as error:
        assert error.problems
        return question, None


def broken(seed: int, moves: int, laws: int) -> list[str]:
    """Return what an answer breaks: all laws of itself, and `laws` of those of alike questions."""
    question, ranking = answered(seed)
    if ranking is None or not ranking.plans:
        return []
    faults = list(priced_alike(question, ranking))
    if question.job.objective != "time":
        return faults
    faults += below_the_bound(question, ranking, moves=moves, seed=seed)
    chosen = [LAWS[(seed + step) % len(LAWS)] for step in range(laws)]
    return faults + [fault for law in chosen for fault in law(question, ranking)]


@pytest.mark.parametrize("seed", QUICK)
def test_answers_hold(seed: int) -> None:
    assert broken(seed, QUICK_MOVES, laws=1) == []


@pytest.mark.parametrize("seed", [*ONCE_BELOW, *nightly(LARGE_ONCE_BELOW)])
def test_certificates_name_what_was_once_below_them(seed: int) -> None:
    assert broken(seed, MOVES, laws=0) == []


@pytest.mark.parametrize("seed", nightly(SEEDS))
def test_answers_hold_against_many_moves(seed: int) -> None:
    assert broken(seed, MOVES, laws=2) == []


@pytest.mark.nightly
def test_as_many_have_a_plan_as_before() -> None:
    rankings = [answered(seed)[1] for seed in COUNTED]
    assert sum(ranking is not None and bool(ranking.plans) for ranking in rankings) >= FLOOR
