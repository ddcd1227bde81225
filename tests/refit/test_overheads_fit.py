"""The fit finds what runs were made with, leaves what they do not show at what is usual, and keeps near duplicates
together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tools.refit.crossvalidate import PROTOCOLS, HeldOutPredictions, cross_validated, fold_of, groups, near_duplicates
from tools.refit.evidence import evidence_table, packed
from tools.refit.intervals import QUANTILE, Residuals, fitted_widths, held_out_ends, residuals, weighted_quantile
from tools.refit.overheads import MOST_OF_A_SOURCE, USUAL, fitted, log_errors, thinned, usual
from tools.refit.scores import change, read_scores, scores_csv, source_scores
from tools.refit.training import timed_cases

from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.frameworks.overheads import Calibration
from shardwright.validation.case import Case
from shardwright.validation.forecast import forecast
from shardwright.validation.runs import published_runs

SOURCES = ("llm-foundry MPT benchmarks", "NeMo 24.07 perf summary", "SimuMax B200 real runs")


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return timed_cases([run for run in published_runs() if run.source in SOURCES])[::9]


@pytest.fixture(scope="module")
def held_out(cases: list[Case]) -> list[HeldOutPredictions]:
    """Return the predictions by the first two protocols."""
    return cross_validated(cases, Analytic(), usual(cases), PROTOCOLS[:2])


def made_with(cases: list[Case], truth: Calibration) -> list[Case]:
    """Return the cases as if measured on machines that `truth` describes."""
    seconds = forecast(cases, Analytic(), truth).seconds
    found = []
    for case, value in zip(cases, seconds, strict=True):
        run = replace(
            case.run,
            measured_iter_time_s=float(value),
            measured_tokens_per_s_per_gpu=None,
        )
        found.append(replace(case, run=run))
    return found


@pytest.mark.nightly
def test_the_fit_explains_runs_made_with_other_overheads(cases):
    start = usual(cases)
    truth = Calibration(
        frameworks={name: replace(USUAL, gemm=1.2, memory=1.5, step_seconds=0.012) for name in start.frameworks},
        architectures=start.architectures,
    )
    measured = made_with(cases, truth)
    before = np.abs(log_errors(measured, Analytic(), start))
    found = fitted(measured, Analytic())
    after = np.abs(log_errors(measured, Analytic(), found))
    assert np.median(before) > 0.08
    assert np.median(after) < 0.015 < 0.06 > np.max(after)


@pytest.mark.nightly
def test_what_no_run_shows_stays_usual(cases):
    dense = [case for case in cases if not case.model.has_experts and case.pool.gpus <= 8]
    found = fitted(dense, Analytic())
    for software in found.frameworks.values():
        assert software.exchange == pytest.approx(USUAL.exchange, rel=1e-6)
        assert software.inter == pytest.approx(USUAL.inter, rel=1e-6)


def test_protocols_leave_every_run_out_once_and_keep_its_like_together(cases):
    for protocol in PROTOCOLS[:3]:
        left_out = np.concatenate(list(groups(cases, protocol)))
        assert sorted(left_out.tolist()) == list(range(len(cases)))
    folds = {near_duplicates(case): fold_of(case) for case in cases}
    assert all(folds[near_duplicates(case)] == fold_of(case) for case in cases)
    for part in groups(cases, "source left out"):
        assert len({cases[index].run.source for index in part}) == 1


def test_held_out_predictions_do_not_see_their_runs(cases, held_out):
    """A source measured ten times too slow spoils nothing of its own held-out predictions."""
    centre = usual(cases)
    spoiled = [
        replace(case, run=replace(case.run, measured_iter_time_s=10.0 * (case.run.seconds or 0.0)))
        if case.run.source == SOURCES[0]
        else case
        for case in cases
    ]
    honest, other = held_out[1], cross_validated(spoiled, Analytic(), centre, PROTOCOLS[1:2])[0]
    mine = np.array([case.run.source == SOURCES[0] for case in cases])
    np.testing.assert_allclose(honest.seconds[mine], other.seconds[mine], rtol=1e-9)
    assert np.abs(np.log(honest.seconds[~mine] / other.seconds[~mine])).max() > 1e-3


def test_the_table_of_evidence_has_the_same_bytes_for_the_same_runs(cases, held_out):
    first, second = (packed(evidence_table(cases, held_out[0])) for _ in range(2))
    assert first == second


def test_a_fit_goes_by_healthy_runs_and_by_so_many_of_a_source(cases):
    many = cases * 60
    kept = thinned(many)
    assert max(Counter(many[index].run.source for index in kept).values()) <= MOST_OF_A_SOURCE
    ill = [replace(case, run=replace(case.run, **words)) for case in cases for words in (
        {"state": "stalled"}, {"state": "capped"}, {"deterministic": "true"}
    )]  # fmt: skip
    assert thinned([*ill, *cases]).tolist() == list(range(len(ill), len(ill) + len(cases)))


def test_scores_are_of_sources_and_changes_are_paired_over_them(cases):
    measured = np.array([case.run.seconds for case in cases], dtype=float)
    ends = np.tile([-0.05, 0.05], (len(cases), 1))
    everyone = np.full(len(cases), True)
    off = {SOURCES[0]: 1.2, SOURCES[1]: 1.1, SOURCES[2]: 1.04}
    seconds = measured * np.array([off[case.run.source] for case in cases])
    worse = {score.source: score for score in source_scores("in domain", cases, seconds, ends, everyone)}
    assert {name: round(score.median_error, 6) for name, score in worse.items()} == {
        name: round(factor - 1.0, 6) for name, factor in off.items()
    }
    assert [worse[name].inside for name in SOURCES] == [0.0, 0.0, 1.0]
    better = source_scores("in domain", cases, np.sqrt(seconds * measured), ends, everyone)
    moved = change(list(worse.values()), better)
    assert moved.sources == 3
    assert moved.low <= moved.share <= moved.high < -0.4
    assert change(better, better).share == 0.0


def test_a_table_of_scores_is_read_as_it_was_written(cases, tmp_path):
    seconds = np.array([case.run.seconds for case in cases], dtype=float)
    scores = source_scores("in domain", cases, seconds, np.zeros((len(cases), 2)), np.full(len(cases), True))
    (tmp_path / "scores.csv").write_text(scores_csv({"in domain": scores}))
    again = read_scores(tmp_path / "scores.csv")["in domain"]
    assert [(score.source, score.runs) for score in again] == [(score.source, score.runs) for score in scores]
    assert max(score.median_error for score in again) == 0.0


def drawn_errors(cases: list[Case], seed: int) -> list[Residuals]:
    """Return errors of two protocols with a deviation of .1, of .3 where experts are present, and nothing else."""
    chance = np.random.default_rng(seed)
    drawn = []
    for site in (0.0, 1.0):
        experts = chance.random(len(cases)) < 0.5
        present = np.stack([np.ones(len(cases)), np.full(len(cases), site), np.zeros(len(cases)), experts], axis=1)
        errors = chance.normal(size=len(cases)) * np.where(experts, 0.3, 0.1)
        drawn.append(Residuals(errors=errors, present=present, known=np.ones(len(cases), dtype=bool)))
    return drawn


def test_intervals_find_what_widens_the_errors(cases):
    many = cases * 40
    low, high = fitted_widths(many, drawn_errors(many, 1), np.ones(len(many), dtype=bool))
    quantile = 1.4758  # of a normal distribution, at .93
    for width in (low, high):
        alone = np.sqrt(width.squares @ [1.0, 0.0, 0.0, 0.0])
        both = np.sqrt(width.squares @ [1.0, 0.0, 0.0, 1.0])
        for end, deviation in ((alone, 0.1), (both, 0.3)):
            assert end * np.mean(list(width.factors.values())) == pytest.approx(quantile * deviation, rel=0.35)
        assert both > 2.0 * alone


def test_ends_of_intervals_do_not_see_their_source(cases):
    """Errors of a source ten times as large change the ends of others, not its own."""
    drawn = drawn_errors(cases, 2)
    mine = np.array([case.run.source == SOURCES[0] for case in cases])
    spoiled = [replace(held, errors=np.where(mine, 10.0 * held.errors, held.errors)) for held in drawn]
    before, after = (np.stack(held_out_ends(cases, protocols)) for protocols in (drawn, spoiled))
    np.testing.assert_array_equal(before[:, mine], after[:, mine])
    assert np.abs(before[:, ~mine] - after[:, ~mine]).max() > 0.01
    assert (before[..., 0] <= 0.0).all() and (before[..., 1] >= 0.0).all()


def test_residuals_say_what_was_left_out(cases, held_out):
    """With a source left out its site is unknown; in domain it is known, and a framework of another source is."""
    held = {row.protocol: residuals(cases, row) for row in held_out}
    assert held["source left out"].present[:, 1].all()
    assert not held["in domain"].present[:, 1].all()
    frameworks = {
        case.job.framework: {other.run.source for other in cases if other.job.framework == case.job.framework}
        for case in cases
    }
    for case, known in zip(cases, held["source left out"].known, strict=True):
        assert known == (len(frameworks[case.job.framework]) > 1)


def test_weighted_quantiles_are_those_of_repeated_values():
    values, weights = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 1.0, 1.0, 7.0])
    repeated = np.repeat(values, weights.astype(int))
    for share in (0.1, QUANTILE):
        assert weighted_quantile(values, weights, share) == pytest.approx(
            weighted_quantile(repeated, np.ones(10), share), abs=0.6
        )
