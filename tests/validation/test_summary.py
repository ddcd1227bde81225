"""Errors by group, against rivals, in memory and in saying what fits, on outcomes made by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from tests.validation.known import known_runs

from shardwright.spec.adapter import Adapter
from shardwright.validation.case import Case, case_of, ideal_seconds
from shardwright.validation.facts import Skip
from shardwright.validation.outcome import NO_REASON, Outcome, RunPrediction, reasons, sweep_outliers
from shardwright.validation.summary import constant_mfu_seconds, roofline_seconds, summarise

RUN = known_runs()["8a16e6807f"]
CASE = case_of(RUN)
NO_GPU = Skip("unpublished", "gpu is not published")


def outcome(seconds: float, measured: float | None, *, case: Case = CASE, fit: float = 0.9, **changes) -> Outcome:
    """Return an outcome with a time predicted and measured, of a run like a known one."""
    run = replace(RUN, measured_iter_time_s=measured, measured_tokens_per_s_per_gpu=None, **changes)
    prediction = RunPrediction(
        seconds=seconds, low_seconds=0.9 * seconds, high_seconds=1.1 * seconds, memory_bytes=40 * 2.0**30,
        fit_probability=fit, recompute="none",
    )  # fmt: skip
    return Outcome(run=run, case=replace(case, run=run), predicted=prediction)


def micro(size: int) -> Case:
    """Return another strategy for the same run."""
    return replace(CASE, row=CASE.row | {"micro_batch": size})


def test_every_source_has_the_same_weight() -> None:
    many = [outcome(1.1, 1.0, source="many") for _ in range(9)]
    summary = summarise([*many, outcome(2.0, 1.0, source="few")])
    assert summary.overall is not None
    assert summary.overall.median_error == pytest.approx(0.1)
    assert summary.overall.mean_error == pytest.approx(0.19)
    ours = summary.macro[0]
    assert (ours.name, ours.sources) == ("Shardwright", 2)
    assert ours.median_error == pytest.approx((0.1 + 1.0) / 2)
    assert [(group.name, group.runs) for group in summary.by["source"]] == [("many", 9), ("few", 1)]
    assert ours.coverage == pytest.approx(0.5)


def test_duplicates_and_skipped_runs_are_counted_and_left_out() -> None:
    twice = replace(outcome(5.0, 1.0), counted=False)
    summary = summarise([outcome(1.0, 1.0), twice, Outcome(run=RUN, skipped=NO_GPU), outcome(1.0, None)])
    assert (summary.rows, summary.predicted, summary.timed, summary.duplicates) == (4, 3, 1, 1)
    assert summary.skipped == ((NO_GPU, 1),)
    assert summary.overall is not None and summary.overall.mean_error == 0.0


def test_rank_correlation_is_taken_within_sweeps_of_different_strategies() -> None:
    times = [(1.0, 10.0), (2.0, 30.0), (3.0, 20.0), (4.0, 40.0)]
    sweep = [outcome(*pair, case=micro(2**place)) for place, pair in enumerate(times)]
    (group,) = summarise(sweep).by["source"]
    assert group.sweeps == 1
    assert group.tau == pytest.approx(4 / 6)
    same = summarise([outcome(*pair) for pair in times])
    assert same.by["source"][0].tau is None, "repeats of one strategy have no order"
    other = [replace(sweep[0], run=replace(sweep[0].run, n_gpus=64.0)), *sweep[1:]]
    assert summarise(other).by["source"][0].sweeps == 0, "three strategies of one sweep are too few"
    later = [replace(sweep[0], run=replace(sweep[0].run, version="26.04")), *sweep[1:]]
    assert summarise(later).by["source"][0].sweeps == 0, "another release is no strategy"


def test_repeated_runs_of_a_strategy_are_averaged_before_ranking() -> None:
    times = [(1.0, 1.0), (1.0, 9.0), (2.0, 6.0), (3.0, 7.0), (4.0, 8.0)]  # the first strategy takes 5 on average
    cases = [micro(1), micro(1), micro(2), micro(4), micro(8)]
    summary = summarise([outcome(*pair, case=case) for pair, case in zip(times, cases, strict=True)])
    assert summary.by["source"][0].tau == pytest.approx(1.0)


def test_scales_are_in_their_order() -> None:
    runs = [outcome(1.0, 1.0, n_gpus=gpus) for gpus in (1024.0, 1024.0, 8.0, 100.0)]
    assert [group.name for group in summarise(runs).by["scale"]] == ["1-8", "65-512", "513+"]


def test_memory_is_apart_by_what_was_measured() -> None:
    runs = [
        outcome(1.0, None, measured_mem_gb=50.0, mem_kind="GiB max_memory_reserved"),
        outcome(1.0, 1.0, measured_mem_gb=40.0, mem_kind="GiB max_memory_allocated"),
    ]
    found = {group.name.split(";")[0]: group for group in summarise(runs).memory}
    assert found["GiB reserved"].mean_error == pytest.approx(0.2)
    assert found["GiB allocated"].mean_error == 0.0


def test_the_probability_to_fit_is_judged_on_runs_that_ran_and_that_failed() -> None:
    ran = [outcome(1.0, 1.0, fit=fit) for fit in (0.99, 0.95, 0.05, 0.5)]
    failed = [replace(outcome(1.0, None, fit=fit), failed=True) for fit in (0.01, 0.95)]
    unknown = outcome(1.0, None, fit=0.0)
    fits = summarise([*ran, *failed, unknown]).fits
    assert (fits.ran, fits.failed) == (4, 2)
    assert fits.ran_below_tenth == 0.25
    assert fits.failed_above_nine_tenths == 0.5
    assert fits.roc_area == pytest.approx((4 + 1.5) / 8)


def test_no_measured_run_gives_no_errors() -> None:
    summary = summarise([outcome(1.0, None)])
    assert (summary.overall, summary.macro, summary.worst) == (None, (), ())
    assert summary.fits.roc_area is None
    json.dumps(asdict(summary), allow_nan=False)


def test_a_constant_mfu_is_learned_from_the_other_sources() -> None:
    ideal = ideal_seconds(CASE)
    cases = [replace(CASE, run=replace(RUN, source=name)) for name in ("a", "a", "b")]
    seconds = ideal / np.array([0.5, 0.5, 0.25])
    found = constant_mfu_seconds(cases, seconds)
    assert found == pytest.approx(ideal / np.array([0.25, 0.25, 0.5]))
    assert np.isnan(constant_mfu_seconds(cases[:2], seconds[:2])).all()
    assert [entry.name for entry in summarise([outcome(1.0, 1.0)]).macro] == [
        "Shardwright",
        "roofline at half of the peak",
    ]


def test_the_ideal_time_is_six_flops_a_parameter_and_token_at_the_peak() -> None:
    tokens = 4096 * 2048
    floor = 6 * CASE.model.parameters * tokens / (512 * 989.4e12)
    assert floor < ideal_seconds(CASE) < 1.15 * floor
    frozen = replace(CASE, job=replace(CASE.job, adapter=Adapter()))
    thirds = ideal_seconds(CASE) * 2 / 3  # without weight gradients; scores and adapters have theirs beside
    assert thirds < ideal_seconds(frozen) < 1.1 * thirds


def test_the_roofline_has_recomputation_and_bubble() -> None:
    piped = replace(CASE, row=CASE.row | {"pp": 4, "dp": 128, "micro_batch": 8})
    plain, again, bubble = roofline_seconds([CASE, CASE, piped], ["none", "full", "none"])
    assert again == pytest.approx(plain * 4 / 3)
    assert bubble == pytest.approx(plain * (1 + 3 / 4))


def test_the_worst_runs_are_a_few_of_each_source_with_reasons() -> None:
    bad = [outcome(1.0, 20.0 + place, source="bad", row_id=f"bad{place}") for place in range(9)]
    summary = summarise([*bad, outcome(1.0, 1.1, source="good", row_id="good")])
    assert [entry.row_id for entry in summary.worst] == ["bad8", "bad7", "bad6", "bad5", "bad4", "good"]
    assert all(entry.reasons for entry in summary.worst)


def kinds(measured: Outcome, *, outlier: bool = False) -> list[str]:
    return [reason.kind for reason in reasons(measured, outlier=outlier)]


def test_reasons_are_facts_of_the_run() -> None:
    assert kinds(outcome(1.0, 2.0, tp=16.0, gpus_per_node=8.0), outlier=True)[:2] == [
        "outlier",
        "tensor_parallel_across_machines",
    ]
    assert "kernel_launches" in kinds(outcome(0.05, 0.09))
    waiting = outcome(1.0, 90.0, pp=2.0, micro_batch=16.0)
    assert "pipeline_waits" in kinds(waiting)
    plain = outcome(1.0, 2.0, case=replace(CASE, guesses=()), n_gpus=8.0)
    assert reasons(plain, outlier=False) == (NO_REASON,)


def test_an_outlier_is_far_from_its_own_sweep() -> None:
    sweep = [outcome(1.0, measured) for measured in (1.9, 2.0, 2.0, 2.1, 9.0)]
    assert sweep_outliers(sweep) == {4}
    assert not sweep_outliers(sweep[:3] + sweep[-1:] + [outcome(1.0, 9.0), outcome(1.0, 9.1)])
    assert not sweep_outliers(sweep[2:])
