"""A search that is stopped answers with a plan of the space, and what it then proves holds."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable

import pytest
from tests.cli.running import run
from tests.nightly import nightly

import shardwright
from shardwright import Ranking, check
from shardwright.cli.output import ended_early
from shardwright.plans.findings import Stopped
from shardwright.progress import heard, stopped, until

ONE_TYPE, SEVERAL = "2x8xA100-SXM-80", "1x4xA100-SXM-40+1x4xV100-SXM2"
QUESTIONS = {
    "one type": ("llama-3.1-8b", ONE_TYPE, {}),
    "several types": ("llama-3.2-1b", SEVERAL, {"precision": "fp16"}),
    "money": ("llama-3.2-1b", SEVERAL, {"precision": "fp16", "objective": "cost", "tokens": "1B"}),
    "money, one type": ("llama-3.1-8b", ONE_TYPE, {"objective": "cost", "tokens": "1B"}),
}


def answer(name: str) -> Ranking:
    model, cluster, options = QUESTIONS[name]
    job = shardwright.make_job(global_batch=32, seq_len=2048, **options)
    return shardwright.plan(shardwright.load_model(model), shardwright.load_cluster(cluster), job, top=1)


def after(looks: int) -> Callable[[], bool]:
    """Return what has had enough once it has been asked so many times."""
    asked = itertools.count()
    return lambda: next(asked) >= looks


def value(ranking: Ranking) -> float:
    best = ranking.best
    dollars = best.iteration_dollars
    return best.iteration_seconds if best.job.objective == "time" or dollars is None else dollars


@pytest.fixture(scope="module")
def whole() -> dict[str, Ranking]:
    return {name: answer(name) for name in QUESTIONS}


@pytest.mark.parametrize("looks", [0, 3, 40, *nightly([1, 2, 5, 8, 13, 20, 80, 160])])
@pytest.mark.parametrize("name", QUESTIONS)
def test_what_a_stopped_search_proves_holds(name: str, looks: int, whole: dict[str, Ranking]) -> None:
    with until(after(looks)):
        ranking = answer(name)
    if not ranking.plans:
        assert ranking.infeasible is not None and ranking.infeasible.reason == Stopped()
        return
    assert not check(ranking.best)
    if not ranking.search.interrupted:
        assert value(ranking) == value(whole[name])
        return
    gap = ranking.search.gap
    assert gap is not None
    assert value(ranking) / (1.0 + gap) <= value(whole[name]) * (1.0 + 1e-9)


def test_the_best_so_far_is_told() -> None:
    told: list[tuple[float, float | None]] = []
    with heard(lambda _: None, lambda best, bound: told.append((best, bound))):
        ranking = answer("several types")
    assert not ranking.search.interrupted and told
    assert all(bound is None or bound <= best for best, bound in told)


def test_an_interrupt_stops_and_a_second_one_ends(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ended_early(None):
            assert not stopped()
            os.kill(os.getpid(), signal.SIGINT)
            assert stopped() and "best plan so far" in capsys.readouterr().err
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_command_answers_within_its_limit() -> None:
    words = ["plan", "--model", "llama-3.1-8b", "--cluster", ONE_TYPE, "--global-batch", "32", "--seq-len", "2048"]
    outcome = run([*words, "--time-limit", "1e-6", "--json"])
    assert outcome.code == 0 and json.loads(outcome.out)["search"]["interrupted"] is True
    assert "stopped early: " in run([*words, "--time-limit", "1e-6"]).out
    assert run([*words, "--time-limit", "0"]).code == 2
