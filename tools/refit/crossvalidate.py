"""Predictions of published runs that the calibration has not seen, under several ways of leaving runs out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tools.refit.overheads import linearised, solved, thinned, value
from tools.refit.processes import mapped

from shardwright.arrays import Floats, Ints
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.frameworks.overheads import Calibration, shipped
from shardwright.spec.model import family_of
from shardwright.validation.case import Case
from shardwright.validation.forecast import forecast_seconds

FOLDS = 10
LARGE = 512
SOURCES_SEEN, DRAWS, SEED = (2, 4, 8, 12, 16, 20), 5, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutPredictions:
    """Predicted seconds of each case by a calibration without it, [N]; NaN where a protocol leaves the case in."""

    protocol: str
    seconds: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningPoint:
    """Errors of the runs of unseen sources, each source counting alike, by a calibration on so many sources."""

    sources: int
    median_error: float
    mean_error: float


def near_duplicates(case: Case) -> str:
    """Return a key that runs share which differ in little but their batch or their day."""
    run = case.run
    facts = (run.source, run.model, run.gpu, run.n_gpus, run.tp, run.pp, run.cp, run.ep, run.vpp, run.micro_batch)
    return repr((*facts, run.precision, run.seq_len, run.zero_or_fsdp_stage))


def fold_of(case: Case) -> int:
    """Return the fold of a run; near duplicates are in the same one."""
    return int.from_bytes(hashlib.sha256(near_duplicates(case).encode()).digest()[:4]) % FOLDS


KEYS: Mapping[str, Callable[[Case], str]] = {
    "in domain": lambda case: str(fold_of(case)),
    "source left out": lambda case: case.run.source,
    "GPU type left out": lambda case: case.pool.gpu.name,
    "512 GPUs and more left out": lambda case: "large" if case.pool.gpus >= LARGE else "",
    "model family left out": lambda case: family_of(case.model),
    "framework left out": lambda case: case.job.framework,
    "mixed GPUs left out": lambda case: "mixed" if case.plan is not None else "",
}
"""What the cases that a protocol leaves out together share; those with an empty key are never left out."""
PROTOCOLS = tuple(KEYS)


def groups(cases: Sequence[Case], protocol: str) -> Iterator[Ints]:
    """Yield the indices of the cases left out together."""
    names = np.array([KEYS[protocol](case) for case in cases])
    for name in sorted(set(names.tolist()) - {""}):
        yield np.flatnonzero(names == name)


def cross_validated(
    cases: Sequence[Case], efficiency: Efficiency, centre: Calibration, protocols: Sequence[str] = PROTOCOLS
) -> list[HeldOutPredictions]:
    """Return the held-out predictions under some protocols. Each calibration is solved anew in the linear picture
    around `centre`, from the cases of `thinned`, and then predicts with the full model."""
    fit = thinned(cases)
    seen = [cases[index] for index in fit]
    linear = linearised(seen, efficiency, centre)
    parts = [(place, left_out) for place, protocol in enumerate(protocols) for left_out in groups(cases, protocol)]

    def predicted(part: tuple[int, Ints]) -> Floats:
        calibration = solved(seen, linear, np.flatnonzero(~np.isin(fit, part[1])))
        return forecast_seconds([cases[index] for index in part[1]], efficiency, calibration)

    seconds = np.full((len(protocols), len(cases)), np.nan)
    for (place, left_out), column in zip(parts, mapped(predicted, parts), strict=True):
        seconds[place, left_out] = column
    return [
        HeldOutPredictions(protocol=protocol, seconds=column)
        for protocol, column in zip(protocols, seconds, strict=True)
    ]


def unseen_source_seconds(cases: Sequence[Case], efficiency: Efficiency) -> Floats:
    """Return predicted seconds of each case by constants that have not seen its source, solved in the linear picture
    around those that ship, [N]."""
    return cross_validated(cases, efficiency, shipped(), ("source left out",))[0].seconds


def learning_curve(cases: Sequence[Case], efficiency: Efficiency, centre: Calibration) -> list[LearningPoint]:
    """Return the errors on unseen sources against the number of sources seen, in the linear picture around `centre`."""
    cases = [cases[index] for index in thinned(cases)]
    linear = linearised(cases, efficiency, centre)
    sources = np.array([case.run.source for case in cases])
    names, chance = np.unique(sources), np.random.default_rng(SEED)
    points = []
    for seen in SOURCES_SEEN:
        if seen >= len(names):
            break
        medians, means = [], []
        for _ in range(DRAWS):
            drawn = chance.permutation(names)[:seen]
            calibration = solved(cases, linear, np.flatnonzero(np.isin(sources, drawn)))
            move = np.log([value(calibration, parameter) / value(centre, parameter) for parameter in linear.parameters])
            off = np.abs(np.expm1(-(linear.errors + linear.slopes @ move)))
            unseen = [off[sources == name] for name in names if name not in drawn]
            medians.append(np.mean([np.median(errors) for errors in unseen]))
            means.append(np.mean([np.mean(errors) for errors in unseen]))
        points.append(
            LearningPoint(sources=seen, median_error=float(np.mean(medians)), mean_error=float(np.mean(means)))
        )
    return points
