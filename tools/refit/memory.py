"""Fits what frameworks keep in memory (columns of the catalogue's frameworks.csv) to published peaks, and how far
predictions are off.

log(measured / predicted) is made small by Gauss-Newton over the logarithms of the few figures that published runs show,
with a normal prior on each, weights that give every source a like say, and a robust loss. Errors are those of
predictions that have not seen the run: near duplicates are held out together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
from tools.refit.crossvalidate import fold_of
from tools.refit.framework_table import figures_text, frameworks_csv
from tools.refit.intervals import weighted_quantile
from tools.refit.overheads import robust_move, source_weights
from tools.refit.training import duplicates_left_out

from shardwright.arrays import Floats, Ints
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.memory.facts import MemoryFacts, trial
from shardwright.spec.job import Framework
from shardwright.validation.case import Case, case_of
from shardwright.validation.facts import SkippedRunError
from shardwright.validation.forecast import forecast
from shardwright.validation.outcome import measured_bytes
from shardwright.validation.runs import PublishedRun
from shardwright.validation.summary import Fits, fits_of

Facts = Mapping[Framework, MemoryFacts]

# The figures that are fitted, and where their priors are centred. Logits: bf16 and fp32, 6 bytes, where gradients take
# their place, and up to twice that; under Megatron-Core 6, as rehearsed. Copies: rotated queries and keys, and the
# parts of an unfused SwiGLU. Gathered states: some layers' worth, as far as a host runs ahead of its device.
PRIORS: Mapping[Framework, Mapping[str, Any]] = {
    "torchtitan": {"logit": 12.0, "gathered": 12.0},
    "nanotron": {"logit": 8.0, "hidden_copies": 8.0, "inner_copies": 2.0, "gathered": 80.0, "gathered_staged": 8.0},
}
SPREAD = 0.4  # of the logarithm of each
STEP, ITERATIONS = 0.1, 3
PSEUDO_RUNS = 12.0  # of all frameworks together, that each framework's spread leans on
UNSEEN = 1.5  # by what errors are larger where a framework was never compared with a run
LEAST_SIGMA = 0.06


def cases_of(runs: Sequence[PublishedRun]) -> list[Case]:
    """Return the cases of runs on machines of one type, one for each group of duplicates."""
    cases = []
    for run in duplicates_left_out(runs):
        try:
            cases.append(case_of(run))
        except SkippedRunError:
            continue
    return [case for case in cases if case.plan is None]


def log_errors(cases: Sequence[Case], facts: Facts) -> Floats:
    """Return log(measured / predicted), of like with like, for each case [N]."""
    with trial(facts):
        predicted = forecast(cases, Analytic()).comparable_bytes
    return np.asarray(np.log(np.array([measured_bytes(case.run) for case in cases]) / predicted))


def slopes_at(cases: Sequence[Case], facts: Facts, errors: Floats) -> dict[tuple[Framework, str], Floats]:
    """Return the derivative of the log errors by the logarithm of every fitted figure, [N] each."""
    frameworks = np.array([case.job.framework for case in cases])
    slopes: dict[tuple[Framework, str], Floats] = {}
    for framework, names in PRIORS.items():
        mine = np.flatnonzero(frameworks == framework)
        for name in names if len(mine) else ():
            moved = moved_by(facts, {(framework, name): STEP})
            column = np.zeros(len(cases))
            column[mine] = (log_errors([cases[int(index)] for index in mine], moved) - errors[mine]) / STEP
            slopes[framework, name] = column
    return slopes


def moved_by(facts: Facts, moves: Mapping[tuple[Framework, str], float]) -> dict[Framework, MemoryFacts]:
    """Return the figures with the logarithms of some moved."""
    new = dict(facts)
    for (framework, name), move in moves.items():
        figure: dict[str, Any] = {name: float(getattr(new[framework], name) * np.exp(move))}
        new[framework] = replace(new[framework], **figure)
    return new


def solved(
    errors: Floats, slopes: Mapping[tuple[Framework, str], Floats], offsets: Floats, weights: Floats, kept: Ints
) -> dict[tuple[Framework, str], float]:
    """Return the moves of the logarithms that suit the cases `kept` best. `offsets` are the logarithms of the priors
    over the present figures."""
    if not slopes:
        return {}
    matrix = np.array(list(slopes.values())).T[kept]
    move = robust_move(errors[kept], matrix, weights[kept], offsets, np.full(len(slopes), SPREAD))
    return dict(zip(slopes, move.tolist(), strict=True))


def offsets_of(facts: Facts, keys: Sequence[tuple[Framework, str]]) -> Floats:
    return np.array([np.log(PRIORS[owner][name] / getattr(facts[owner], name)) for owner, name in keys])


def fitted(cases: Sequence[Case], documented: Facts) -> dict[Framework, MemoryFacts]:
    """Return the figures fitted to all cases; those that are not fitted are as documented."""
    facts = {owner: replace(figures, **PRIORS.get(owner, {})) for owner, figures in documented.items()}
    weights = source_weights(cases)
    for _ in range(ITERATIONS):
        errors = log_errors(cases, facts)
        slopes = slopes_at(cases, facts, errors)
        offsets = offsets_of(facts, list(slopes))
        facts = moved_by(facts, solved(errors, slopes, offsets, weights, np.arange(len(cases))))
    return facts


def held_out_errors(cases: Sequence[Case], centre: Facts, *, by_source: bool = False) -> Floats:
    """Return the log errors of each case by figures fitted without its near duplicates (or its source), in the linear
    picture around `centre`, [N]."""
    errors = log_errors(cases, centre)
    slopes = slopes_at(cases, centre, errors)
    offsets, weights = offsets_of(centre, list(slopes)), source_weights(cases)
    keys = np.array([case.run.source if by_source else str(fold_of(case)) for case in cases])
    held = np.zeros(len(cases))
    for key in sorted(set(keys.tolist())):
        out = np.flatnonzero(keys == key)
        facts = moved_by(centre, solved(errors, slopes, offsets, weights, np.flatnonzero(keys != key)))
        held[out] = log_errors([cases[int(index)] for index in out], facts)
    return held


def source_medians(cases: Sequence[Case], errors: Floats) -> dict[str, tuple[int, float, float]]:
    """Return for each source its runs, the median of |predicted / measured - 1|, and of measured over predicted."""
    sources = np.array([case.run.source for case in cases])
    off = np.abs(np.expm1(-errors))
    return {
        name: (
            int((sources == name).sum()),
            float(np.median(off[sources == name])),
            float(np.exp(np.median(errors[sources == name]))),
        )
        for name in sorted(set(sources.tolist()))
    }


def spreads(cases: Sequence[Case], errors: Floats, facts: Facts) -> dict[Framework, MemoryFacts]:
    """Return the figures with the standard deviations of held-out errors on either side. Frameworks with few runs lean
    on all of them together."""
    weights = source_weights(cases)
    frameworks = np.array([case.job.framework for case in cases])
    new = dict(facts)
    for name, sign in (("above", 1.0), ("below", -1.0)):
        size = np.maximum(sign * errors, 0.0)
        pooled = UNSEEN * _tail(size, weights)
        for framework in new:
            mine = frameworks == framework
            tail = _tail(size[mine], weights[mine]) if mine.any() else pooled
            count = float(weights[mine].sum())
            sigma = max((count * tail + PSEUDO_RUNS * pooled) / (count + PSEUDO_RUNS), LEAST_SIGMA)
            width: dict[str, Any] = {name: sigma}
            new[framework] = replace(new[framework], **width)
    return new


def _tail(size: Floats, weights: Floats) -> float:
    """Return the standard deviation of one side: a normal one has a tenth of its mass on that side beyond 1.28."""
    return weighted_quantile(size, weights, 0.9) / NormalDist().inv_cdf(0.9)


def fit_quality(ran: Sequence[Case], failed: Sequence[Case], facts: Facts) -> Fits:
    """Return how the probability to fit tells runs that ran from those that failed."""
    with trial(facts):
        chances = [forecast(cases, Analytic()).fit_probability for cases in (ran, failed)]
    return fits_of(np.concatenate(chances), np.repeat([False, True], [len(ran), len(failed)]))


def table(facts: Facts) -> bytes:
    """Return the table of frameworks with these figures."""
    return frameworks_csv({name: figures_text(figures, 3) for name, figures in facts.items()})
