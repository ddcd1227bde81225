"""What a search may propose, the trainer that it is for takes: candidates of whole spaces, drawn from all models,
machines and jobs that can be asked for.

No plan is looked for here: layouts, settings and switches are listed as searches list them, so a plan that a trainer
refuses is found whatever its price.
"""

from __future__ import annotations

from random import Random

import pytest
from tests.nightly import nightly
from tests.support.spaces import ONE_TYPE, SEVERAL, candidates, over_several_types, questions

import shardwright
from shardwright import Plan, check
from shardwright.errors import Problem
from shardwright.exporters.exported import Limit
from shardwright.exporters.targets import TRAINERS
from shardwright.plans.findings import NoTrainer
from shardwright.spec.catalog.frameworks import MEGATRON, OWN
from shardwright.trainers.runs import limits_of_trainer

TARGETS = (*TRAINERS, *[OWN] * len(TRAINERS))


def faults(plan: Plan, trainer: str) -> list[Problem]:
    """Return what is wrong with a plan for a trainer. An option of the job that another plan would do without is the
    search's to mend, which asks again."""
    problems = check(plan) or tuple(limits_of_trainer(trainer)(plan))
    return [item for item in problems if not (isinstance(item, Limit) and item.path.startswith("job.options."))]


@pytest.mark.parametrize("seed", [1, *nightly(range(2, 40))])
def test_trainers_take_every_candidate_on_one_type(seed: int) -> None:
    chance, tried = Random(seed), 0
    for question in questions(seed, 44, ONE_TYPE, TARGETS):
        for plan in candidates(question, chance, 8):
            tried += 1
            assert not faults(plan, question.trainer), question.name
    assert tried > 150


@pytest.mark.parametrize("seed", [1, *nightly(range(2, 20))])
def test_trainers_take_every_setting_over_several_types(seed: int) -> None:
    chance, tried = Random(seed), 0
    for question in questions(seed, 20, SEVERAL, (MEGATRON, OWN)):
        for trainer, plan in over_several_types(question, chance, 10):
            tried += 1
            assert not faults(plan, trainer), question.name
    assert tried > 100


@pytest.mark.parametrize("seed", nightly(range(100, 250)))
def test_what_is_found_for_a_trainer_it_runs(seed: int) -> None:
    """And where there is no plan, another reason is named than that nobody runs any."""
    (question,) = questions(seed, 1, (*ONE_TYPE, *SEVERAL), TARGETS)
    own = question.trainer == OWN
    ranking = shardwright.plan(
        question.model,
        question.cluster,
        question.job,
        frameworks=(OWN,) if own else (),
        exportable_to=None if own else question.trainer,
    )
    assert ranking.plans or (ranking.infeasible and not isinstance(ranking.infeasible.reason, NoTrainer)), question.name
    for plan in ranking.plans:
        assert not faults(plan, question.trainer), question.name
