"""Predictions of many cases, those of one model, cluster and job in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.context import Context
from shardwright.cost.frameworks.overheads import Calibration
from shardwright.cost.iteration.batch import Verdict, evaluate
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.memory.facts import fit_probability, memory_facts
from shardwright.cost.memory.sizes import reserved_bytes
from shardwright.cost.strategies import NONE, SELECTIVE, UNIFORM, Row, strategies
from shardwright.cost.trust.evidence import Conditions, conditions_of
from shardwright.cost.trust.interval import interval_seconds
from shardwright.progress import tell
from shardwright.records import record
from shardwright.spec.cluster import NodePool
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.validation.case import Case
from shardwright.validation.facts import habits_of
from shardwright.validation.runs import PublishedRun

LEVELS = 4  # of recomputation, as in `cost.strategies`
OPEN_LEVELS = (NONE, SELECTIVE, UNIFORM)  # where it is not published
# A run that ran did fit: who avoids recomputation has some only where memory is predicted to be far too small.
SLACK = 1.6


@record
class Forecast:
    """Columns over cases, [N]: seconds of an iteration and the ends of their 80 % interval, peak bytes of the fullest
    GPU, the probability that they fit, and the recomputation assumed (a level of `cost.strategies`).
    `comparable_bytes` is what the kind of figure that a run publishes would be."""

    seconds: Floats
    low_seconds: Floats
    high_seconds: Floats
    peak_bytes: Floats
    fit_probability: Floats
    recompute: Ints
    comparable_bytes: Floats


def forecast(cases: Sequence[Case], efficiency: Efficiency, calibration: Calibration | None = None) -> Forecast:
    """Return the predictions of `cases`, in their order. `calibration` replaces the one that ships."""
    iterations = _iterations(cases, efficiency, calibration)
    time, bytes_ = iterations.seconds, iterations.peak_bytes
    fastest, slowest = _doubtful(cases, iterations, efficiency, calibration)
    intervals = np.array(
        [interval_seconds(value, setting) for value, setting in zip(time, map(conditions_of_case, cases), strict=True)]
    ).reshape(-1, 2)
    fits = [fit_probability(value, case.pool.memory_bytes, case.job) for value, case in zip(bytes_, cases, strict=True)]
    return Forecast(
        seconds=time,
        low_seconds=intervals[:, 0] * fastest / time,
        high_seconds=intervals[:, 1] * slowest / time,
        peak_bytes=bytes_,
        fit_probability=np.array(fits),
        recompute=iterations.recompute,
        comparable_bytes=iterations.comparable_bytes,
    )


def forecast_seconds(cases: Sequence[Case], efficiency: Efficiency, calibration: Calibration | None = None) -> Floats:
    """Return the seconds of `forecast` alone, [N], without the search for like runs that its intervals take."""
    return _iterations(cases, efficiency, calibration).seconds


class Iterations(NamedTuple):
    """Columns over cases, [N], of `Forecast` that need no published runs; `fastest` and `slowest` are seconds under any
    recomputation that a run may have had."""

    seconds: Floats
    peak_bytes: Floats
    comparable_bytes: Floats
    recompute: Ints
    fastest: Floats
    slowest: Floats


def _doubtful(
    cases: Sequence[Case], iterations: Iterations, efficiency: Efficiency, calibration: Calibration | None
) -> tuple[Floats, Floats]:
    """Return the least and the most seconds of each case, [N], under what it may have run as well: recomputation that
    is not published, and defaults in doubt."""
    fastest, slowest = iterations.fastest.copy(), iterations.slowest.copy()
    others = [(index, other) for index, case in enumerate(cases) for other in case.others]
    if others:
        seconds = _iterations([case for _, case in others], efficiency, calibration).seconds
        places = [index for index, _ in others]
        np.minimum.at(fastest, places, seconds)
        np.maximum.at(slowest, places, seconds)
    return fastest, slowest


def _iterations(cases: Sequence[Case], efficiency: Efficiency, calibration: Calibration | None) -> Iterations:
    groups: dict[tuple[Model, NodePool, Job], list[int]] = {}
    seconds, peak, published = (np.zeros((len(cases), LEVELS)) for _ in range(3))
    for index, case in enumerate(cases):
        if case.plan is None:
            groups.setdefault((case.model, case.pool, case.job), []).append(index)
            continue
        mixed = mixed_iteration(case.plan, efficiency, calibration)
        seconds[index] = mixed.seconds
        peak[index] = published[index] = max(float(replica.peak_bytes.max()) for replica in mixed.replicas)
    for number, ((model, pool, job), members) in enumerate(groups.items()):
        tell(number / len(groups))
        given = calibration.of(job.framework, pool.gpu) if calibration else None
        context = Context(model=model, pool=pool, job=job, efficiency=efficiency, measured_overheads=given)
        places = [(index, level) for index in members for level in _levels(cases[index])]
        verdict = evaluate(context, strategies([at_level(cases[index], level) for index, level in places]))
        of, at = np.array(places).T
        seconds[of, at] = verdict.seconds
        peak[of, at] = verdict.peak_bytes
        published[of, at] = [comparable_bytes(cases[index].run, job, verdict, row) for row, index in enumerate(of)]
    chosen = np.array([_level(case, peak[index]) for index, case in enumerate(cases)], dtype=np.int64)
    rows = np.arange(len(cases))
    likely = np.array([_likely(case, peak[index], chosen[index]) for index, case in enumerate(cases)]).reshape(
        -1, LEVELS
    )
    return Iterations(
        seconds[rows, chosen],
        peak[rows, chosen],
        published[rows, chosen],
        chosen,
        np.where(likely, seconds, np.inf).min(axis=1),
        np.where(likely, seconds, 0.0).max(axis=1),
    )


def comparable_bytes(run: PublishedRun, job: Job, verdict: Verdict, row: int) -> float:
    """Return the predicted figure of the kind that a run publishes: tensors (allocated), what the allocator reserves
    for them, or the whole process; of the last pipeline rank, the first (nanotron's logging rank has the peaks of the
    first stage), or the fullest. Where the kind is not said, torchtitan prints reserved memory and others allocated."""
    words = run.mem_kind.casefold()
    ranks = verdict.last_tensor_bytes if "last global rank" in words else verdict.tensor_bytes
    tensors = float((verdict.first_tensor_bytes if "logging rank" in words else ranks)[row])
    if "nvidia-smi" in words:
        return tensors + float(reserved_bytes(job, np.array(tensors)))
    if "reserved" in words or ("alloc" not in words and job.framework == "torchtitan"):
        return tensors * (1.0 + memory_facts(job.framework).fragmentation)
    return tensors


def conditions_of_case(case: Case) -> Conditions:
    """Return the setting of a case; mixed machines go by their first type."""
    gpus = case.plan.gpus if case.plan else case.pool.gpus
    types = len(case.plan.gpus_by_type) if case.plan else 1
    return conditions_of(case.model, case.pool.gpu, gpus, case.job, gpu_types=types)


def _levels(case: Case) -> tuple[int, ...]:
    """Return the levels of recomputation that a case may have had."""
    if not case.open_recompute:
        return (int(case.row["recompute"]),)
    return (NONE, UNIFORM) if habits_of(case.job.framework).whole_layers else OPEN_LEVELS


def at_level(case: Case, level: int) -> Row:
    """Return the row of a case under a level of recomputation, the published one where it is."""
    if not case.open_recompute:
        return case.row
    return {**case.row, "recompute": level, "recompute_layers": int(level == UNIFORM)}


def _likely(case: Case, peak_bytes: Floats, chosen: int) -> Bools:
    """Return which levels of recomputation a case may have had, [LEVELS]: where it is not published, all that fit if
    memory is over-predicted by as much as it may be."""
    levels = np.arange(LEVELS)
    if not case.open_recompute:
        return np.asarray(levels == chosen)
    fits = peak_bytes <= SLACK * case.pool.memory_bytes
    return np.asarray((levels == chosen) | (np.isin(levels, _levels(case)) & fits))


def _level(case: Case, peak_bytes: Floats) -> int:
    """Return the recomputation of a case: the published one, or the least with which it fits."""
    if not case.open_recompute:
        return int(case.row.get("recompute", 0))
    slack = 1.0 if habits_of(case.job.framework).recomputes else SLACK
    fitting = [level for level in _levels(case) if peak_bytes[level] <= slack * case.pool.memory_bytes]
    return fitting[0] if fitting else UNIFORM
