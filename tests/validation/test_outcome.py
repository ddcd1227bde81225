"""One run predicted against what was measured of it; memory against a predicted figure of the same kind and rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cost.samples import context, llama, pool, row
from tests.validation.known import known_runs

from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.strategies import strategies
from shardwright.spec.job import Job
from shardwright.units import GIBIBYTE, GIGA
from shardwright.validation.facts import Skip, first_and_last
from shardwright.validation.forecast import comparable_bytes
from shardwright.validation.outcome import Outcome, RunPrediction, measured_bytes, memory_kind, outcomes
from shardwright.validation.runs import PublishedRun

RUNS = known_runs()
EFFICIENCY = default_efficiency()


def predicted(seconds: float = 1.0) -> RunPrediction:
    return RunPrediction(
        seconds=seconds, low_seconds=0.9 * seconds, high_seconds=1.2 * seconds, memory_bytes=5e10, fit_probability=0.9,
        recompute="none",
    )  # fmt: skip


def test_every_known_run_is_predicted_within_a_factor_of_three() -> None:
    for outcome in outcomes(tuple(RUNS.values()), EFFICIENCY):
        assert outcome.predicted is not None, outcome
        assert outcome.predicted.low_seconds < outcome.predicted.seconds < outcome.predicted.high_seconds
        assert 0.0 <= outcome.predicted.fit_probability <= 1.0
        assert outcome.ratio is not None and 1 / 3 < outcome.ratio < 3, outcome.run


def test_outcomes_stand_in_the_order_of_the_runs_and_do_not_depend_on_it() -> None:
    runs = tuple(RUNS.values())
    forward, backward = outcomes(runs, EFFICIENCY), outcomes(runs[::-1], EFFICIENCY)
    assert [outcome.run for outcome in forward] == list(runs)
    assert [outcome.predicted for outcome in forward] == [outcome.predicted for outcome in reversed(backward)]


def test_error_is_predicted_over_measured_less_one() -> None:
    outcome = Outcome(run=replace(RUNS["8a16e6807f"], measured_iter_time_s=2.0), predicted=predicted(1.0))
    assert outcome.ratio == 2.0
    assert outcome.error == -0.5


def test_a_failed_run_has_no_measurement() -> None:
    (outcome,) = outcomes([RUNS["40c68fce13"]], EFFICIENCY, failed=True)
    assert outcome.predicted is not None
    assert (outcome.measured_seconds, outcome.measured_bytes, outcome.ratio) == (None, None, None)


def test_of_duplicates_the_first_that_can_be_predicted_counts() -> None:
    run = replace(RUNS["8a16e6807f"], dup_group="same")
    unclear = replace(run, n_gpus=None)
    found = outcomes([unclear, run, run, RUNS["413f238ffe"]], EFFICIENCY)
    assert [outcome.counted for outcome in found if outcome.predicted] == [True, False, True]
    assert found[0].skipped is not None
    assert "n_gpus" in found[0].skipped.words


def test_runs_that_are_not_asked_for_are_skipped_and_unrated_ones_are_not() -> None:
    run = RUNS["8a16e6807f"]
    runs = [run, replace(run, quality="C"), replace(run, quality=""), replace(run, kind="lora"), replace(run, kind="")]
    found = outcomes(runs, EFFICIENCY, quality="AB", kinds=["pretrain"])
    skipped = ["", "quality C is not asked for", "", "kind lora is not asked for", ""]
    assert [outcome.skipped.words if outcome.skipped else "" for outcome in found] == skipped


def test_a_precision_that_the_gpu_lacks_is_a_reason_not_an_error() -> None:
    (outcome,) = outcomes([replace(RUNS["75913be254"], precision="fp8")], EFFICIENCY)
    assert outcome.skipped == Skip("unable_gpu", "A100-SXM-80 cannot compute in fp8")


def test_the_recomputation_that_was_taken_is_said() -> None:
    (outcome,) = outcomes([RUNS["94cfbc7a84"]], EFFICIENCY)
    assert outcome.predicted is not None
    assert f"recomputation: {outcome.predicted.recompute}, the least that fits" in map(str, outcome.assumed)


@pytest.mark.parametrize(
    ("words", "kind", "unit"),
    [
        ("GiB max over ranks of max_memory_allocated", "GiB allocated", GIBIBYTE),
        ("GiB max over ranks, torchtitan max_reserved", "GiB reserved", GIBIBYTE),
        ("GiB nvidia-smi process memory", "GiB process", GIBIBYTE),
        ("GiB max_memory_allocated (torch peak) on last global rank", "GiB allocated, one rank", GIBIBYTE),
        ("GB as in dataset (nanotron logged peak memory, logging rank)", "GiB allocated, one rank", GIBIBYTE),
        ("GB peak memory as reported", "GB not stated", GIGA),
        ("", "GiB not stated", GIBIBYTE),
    ],
)
def test_memory_is_told_apart_by_unit_and_definition(words, kind, unit) -> None:
    run = PublishedRun(row_id="x", mem_kind=words, measured_mem_gb=10.0)
    assert memory_kind(run) == kind
    assert measured_bytes(run) == 10.0 * unit


def test_strategy_and_micro_batches_are_those_published() -> None:
    outcome = Outcome(run=RUNS["413f238ffe"])
    assert outcome.strategy == "tp 4 pp 8 vpp 5 dp 2"
    assert outcome.micro_batches == 128.0


JOB = Job(global_batch=64, seq_len=4096)
RUN = PublishedRun(row_id="a")


@pytest.fixture(name="verdict", scope="module")
def fixture_verdict():
    where = context(llama(16, 2048, 32, 32, 8192, 131072), pool(1, 8), JOB)
    return evaluate(where, strategies([row(where, pp=4, dp=2)]))


@pytest.mark.parametrize(
    ("words", "ranks", "context_too", "reserved"),
    [
        ("GiB max over ranks of max_memory_allocated", "tensor_bytes", False, False),
        ("GiB max_memory_allocated on last global rank", "last_tensor_bytes", False, False),
        ("GB as in dataset (nanotron logged peak memory, logging rank)", "first_tensor_bytes", False, False),
        ("GiB max_memory_reserved, worst rank", "tensor_bytes", False, True),
        ("GiB nvidia-smi process memory", "tensor_bytes", True, True),
        ("peak GB", "tensor_bytes", False, False),
    ],
)
def test_like_is_compared_with_like(verdict, words, ranks, context_too, reserved):
    found = comparable_bytes(replace(RUN, mem_kind=words), JOB, verdict, 0)
    expected = getattr(verdict, ranks)[0] * (1 + reserved * memory_facts("megatron").fragmentation)
    assert found == pytest.approx(expected + 1.2e9 * context_too)


def test_torchtitan_prints_reserved_gib(verdict):
    run = replace(RUN, mem_kind="GB peak memory as reported", framework="torchtitan", measured_mem_gb=10.0)
    job = replace(JOB, framework="torchtitan")
    assert measured_bytes(run) == 10 * 2**30
    assert comparable_bytes(run, job, verdict, 0) > comparable_bytes(run, JOB, verdict, 0)


@pytest.mark.parametrize(
    ("layers", "stages", "head", "expected"),
    [(16, 1, 4.0, (16, 16)), (16, 4, 4.0, (6, 0)), (28, 4, 4.0, (9, 3)), (12, 4, 0.0, (3, 3)), (32, 2, 2.3, (18, 14))],
)
def test_balanced_stages_take_layers_until_they_have_more_than_their_share(layers, stages, head, expected):
    """16 layers and a head as heavy as four make shares of five; a stage stops at its sixth unit, above five."""
    assert first_and_last(layers, stages, head) == expected
