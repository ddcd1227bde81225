"""What searches may propose for `shardwright train`, it trains: candidates of whole spaces, of a small model of each
family, train as one process does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import pytest
from tests.nightly import nightly
from tests.runtime.equal import SGD, require_equal
from tests.runtime.reference import reference_run
from tests.runtime.samples import SEQ_LEN
from tests.runtime.workers import Case, run_cases
from tests.support.spaces import Question, candidates, over_several_types, small_models

import shardwright
from shardwright import Job, Plan
from shardwright.spec.adapter import parse_adapter
from shardwright.spec.catalog.frameworks import OWN
from shardwright.trainers.runs import model_refusals

PROCESSES, STEPS, TOGETHER = 4, 2, 20
CLUSTERS = ("1x4xRTX4090", "1x4xRTX4090", "1x2xRTX4090+1x2xRTX3090")


def drawn(seed: int) -> Iterator[Plan]:
    """Yield up to two plans for a question, none where the family has matrices that adapters do not go beside."""
    chance, models = Random(seed), small_models()
    adapter = parse_adapter("lora:4") if chance.random() < 0.2 else None
    job = Job(
        global_batch=chance.choice((4, 8)),
        seq_len=SEQ_LEN,
        precision="fp32",
        optimizer="sgd",
        framework=OWN,
        adapter=adapter,
    )
    cluster, model = shardwright.load_cluster(chance.choice(CLUSTERS)), models[chance.randrange(len(models))]
    question = Question(trainer=OWN, model=model, cluster=cluster, job=job)
    if model_refusals(OWN, model, cluster, job):
        return
    plans = [*candidates(question, chance, 12), *(plan for _, plan in over_several_types(question, chance, 4))]
    spread = [plan for plan in plans if 1 < plan.gpus <= PROCESSES]
    yield from chance.sample(spread, min(2, len(spread)))


@pytest.mark.parametrize("seeds", [range(1), *nightly(range(i, i + TOGETHER) for i in range(1, 201, TOGETHER))])
def test_candidates_train_as_one_process_does(seeds: Sequence[int]) -> None:
    plans = {f"{seed}-{number}": plan for seed in seeds for number, plan in enumerate(drawn(seed))}
    outcomes = run_cases([Case(name, plan, SGD, steps=STEPS) for name, plan in plans.items()], PROCESSES)
    assert len(outcomes) >= len(seeds)
    for name, plan in plans.items():
        require_equal(outcomes[name], reference_run(plan, SGD, steps=STEPS, seed=Case.seed))
