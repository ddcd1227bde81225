"""The bounds of the search hold under the fitted efficiency model, whose rings ramp up and whose products are uneven."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from tests.nightly import examples
from tests.search.problems import Problem, problems, solved
from tests.search.test_sketch import sketch_holds

from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.learned import Learned


@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(problem=problems(most=3000))
def test_no_candidate_is_below_the_bound_of_its_arrangement(problem: Problem):
    where, verdict = solved(problem)
    if len(verdict.rows):
        learned = replace(where, efficiency=Learned())
        sketch_holds(learned, evaluate(learned, verdict.rows))
