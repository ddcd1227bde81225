"""Predictions of published runs that the calibration has not seen, under several ways of leaving runs out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tools.refit.overheads import Linear, linearised, solved, value

from shardwright.arrays import Floats, Ints
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.frameworks.overheads import Calibration, shipped
from shardwright.validation.case import Case
from shardwright.validation.forecast import forecast

FOLDS = 10
LARGE = 512
SOURCES_SEEN, DRAWS, SEED = (2, 4, 8, 12, 16, 20), 5, 7
PROTOCOLS = ("in domain", "source left out", "GPU type left out", "512 GPUs and more left out")


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


def groups(cases: Sequence[Case], protocol: str) -> Iterator[Ints]:
    """Yield the indices of the cases left out together."""
    keys: list[str]
    if protocol == "in domain":
        keys = [str(fold_of(case)) for case in cases]
    elif protocol == "source left out":
        keys = [case.run.source for case in cases]
    elif protocol == "GPU type left out":
        keys = [case.pool.gpu.name for case in cases]
    else:
        keys = ["large" if case.pool.gpus >= LARGE else "" for case in cases]
    names = np.array(keys)
    for name in sorted(set(keys) - {""}):
        yield np.flatnonzero(names == name)


def cross_validated(cases: Sequence[Case], efficiency: Efficiency, centre: Calibration) -> list[HeldOutPredictions]:
    """Return the held-out predictions under every protocol. Each calibration is solved anew in the linear picture
    around `centre`, and then predicts with the full model."""
    linear = linearised(cases, efficiency, centre)
    return [
        HeldOutPredictions(protocol=protocol, seconds=_protocol(cases, efficiency, linear, protocol))
        for protocol in PROTOCOLS
    ]


def unseen_source_seconds(cases: Sequence[Case], efficiency: Efficiency) -> Floats:
    """Return predicted seconds of each case by constants that have not seen its source, solved in the linear picture
    around those that ship, [N]."""
    return _protocol(cases, efficiency, linearised(cases, efficiency, shipped()), "source left out")


def _protocol(cases: Sequence[Case], efficiency: Efficiency, linear: Linear, protocol: str) -> Floats:
    seconds = np.full(len(cases), np.nan)
    everyone = np.arange(len(cases))
    for left_out in groups(cases, protocol):
        calibration = solved(cases, linear, np.setdiff1d(everyone, left_out))
        seconds[left_out] = forecast([cases[index] for index in left_out], efficiency, calibration).seconds
    return seconds


def learning_curve(cases: Sequence[Case], efficiency: Efficiency, centre: Calibration) -> list[LearningPoint]:
    """Return the errors on unseen sources against the number of sources seen, in the linear picture around `centre`."""
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
