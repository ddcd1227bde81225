"""Fits the overheads of frameworks and the clocks of architectures to published runs.

The logarithm of measured over predicted seconds is made small by Gauss-Newton over the logarithms of the parameters,
with a normal prior on each (so that what the runs do not show stays at what is usual), weights that give every source
a like say, and a robust loss (Student's t), since published runs contain outliers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from tools.refit.processes import mapped

from shardwright.arrays import Floats, Ints
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.frameworks.overheads import Calibration, Clocks, Overheads
from shardwright.spec.catalog.frameworks import framework_names
from shardwright.validation.case import Case
from shardwright.validation.forecast import forecast_seconds

FRAMEWORK_NAMES = tuple(field.name for field in fields(Overheads))
CLOCK_NAMES = tuple(field.name for field in fields(Clocks))
# What is usual, and the standard deviation of its logarithm. Times of operators in training over those of the
# operator model, shares of link bandwidth, the host time of a call: some µs of launching, some tens of Python.
USUAL = Overheads(
    memory=1.2,
    intra=0.9,
    inter=0.8,
    latency=1.5,
    optimizer=1.2,
    launch_seconds=5e-5,
    rank_seconds=2e-5,
    pass_seconds=1e-4,
    step_seconds=1e-2,
    straggling=0.004,
)
SPREAD = {
    "gemm": 0.03,
    "gemm_fp8": 0.03,
    "attention": 0.20,
    "memory": 0.30,
    "exchange": 0.5,
    "intra": 0.15,
    "inter": 0.2,
    "latency": 1.0,
    "optimizer": 0.3,
    "launch_seconds": 0.5,
    "rank_seconds": 1.5,
    "pass_seconds": 0.8,
    "step_seconds": 0.2,
    "straggling": 0.7,
}
CLOCK_SPREAD = {"gemm": 0.03, "gemm_fp8": 0.06, "attention": 0.1}
NOISE = 0.05  # log error of a good run that the model should explain
FREEDOM = 3.0  # of Student's t
SOURCE_WEIGHT = 30.0  # runs of one source count as at most about so many
ILL = ("stalled", "capped")  # states that no overhead of a framework explains
MOST_OF_A_SOURCE = 120  # runs that a fit goes by
STEP = 0.05
ITERATIONS = 8
ENOUGH = 1e-3  # of the objective, by which an iteration makes it smaller for there to be another
STEPS = (1.0, 0.5, 0.25)  # of the way to the solution of the linear picture, which need not be better
START_RANK_SECONDS = 3e-4  # where host time still shows beside the device's


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadParameter:
    """One number of a calibration: of a framework (`clock` false) or an architecture."""

    clock: bool
    owner: str
    name: str

    @property
    def spread(self) -> float:
        return (CLOCK_SPREAD if self.clock else SPREAD)[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Log errors of the runs at `centre` [N] and their derivatives by the logarithms of the parameters [N, P]."""

    centre: Calibration
    parameters: tuple[OverheadParameter, ...]
    errors: Floats
    slopes: Floats


def parameters_of(cases: Sequence[Case]) -> tuple[OverheadParameter, ...]:
    """Return the parameters of the frameworks and architectures of `cases`."""
    frameworks = sorted({case.job.framework for case in cases})
    architectures = sorted({case.pool.gpu.architecture for case in cases})
    return (
        *(OverheadParameter(clock=False, owner=owner, name=name) for owner in frameworks for name in FRAMEWORK_NAMES),
        *(OverheadParameter(clock=True, owner=owner, name=name) for owner in architectures for name in CLOCK_NAMES),
    )


def value(calibration: Calibration, parameter: OverheadParameter) -> float:
    if parameter.clock:
        return float(getattr(calibration.architectures.get(parameter.owner, Clocks()), parameter.name))
    return float(getattr(calibration.frameworks[parameter.owner], parameter.name))


def usual_value(parameter: OverheadParameter) -> float:
    return float(getattr(Clocks() if parameter.clock else USUAL, parameter.name))


def usual(cases: Sequence[Case]) -> Calibration:
    """Return a calibration in which everything is usual, also for frameworks without a case."""
    return Calibration(
        frameworks=dict.fromkeys(framework_names(), USUAL),
        architectures={case.pool.gpu.architecture: Clocks() for case in cases},
    )


def multiplied(calibration: Calibration, factors: dict[OverheadParameter, float]) -> Calibration:
    """Return the calibration with the given parameters multiplied."""
    frameworks, architectures = dict(calibration.frameworks), dict(calibration.architectures)
    for parameter, factor in factors.items():
        new = {parameter.name: value(calibration, parameter) * float(factor)}
        if parameter.clock:
            architectures[parameter.owner] = replace(architectures.get(parameter.owner, Clocks()), **new)
        else:
            frameworks[parameter.owner] = replace(frameworks[parameter.owner], **new)
    return Calibration(frameworks=frameworks, architectures=architectures)


def log_errors(cases: Sequence[Case], efficiency: Efficiency, calibration: Calibration) -> Floats:
    """Return log(measured / predicted) of every case, [N]."""
    measured = np.array([case.run.seconds or np.nan for case in cases])
    return np.asarray(np.log(measured / forecast_seconds(cases, efficiency, calibration)))


def linearised(cases: Sequence[Case], efficiency: Efficiency, centre: Calibration) -> Linear:
    """Return the log errors at `centre` with their slopes: one forecast for each name, of all owners at once, since
    every run has one framework and (but for mixed machines) one architecture. Clocks act as frameworks do."""
    parameters = parameters_of(cases)
    errors = log_errors(cases, efficiency, centre)

    def slope(name: str) -> Floats:
        moved = multiplied(centre, {p: float(np.exp(STEP)) for p in parameters if not p.clock and p.name == name})
        return (log_errors(cases, efficiency, moved) - errors) / STEP

    by_name = dict(zip(FRAMEWORK_NAMES, mapped(slope, FRAMEWORK_NAMES), strict=True))
    slopes = np.zeros((len(cases), len(parameters)))
    for column, parameter in enumerate(parameters):
        owners = [case.pool.gpu.architecture if parameter.clock else case.job.framework for case in cases]
        mine = np.array(owners) == parameter.owner
        slopes[mine, column] = by_name[parameter.name][mine]
    return Linear(centre=centre, parameters=parameters, errors=errors, slopes=slopes)


def thinned(cases: Sequence[Case]) -> Ints:
    """Return the indices of the cases that a fit goes by: healthy ones, of a source with more than MOST_OF_A_SOURCE as
    many, evenly. More of one sweep weigh no more and say little more."""
    places: dict[str, list[int]] = {}
    for index, case in enumerate(cases):
        if case.run.state not in ILL and case.run.deterministic != "true":
            places.setdefault(case.run.source, []).append(index)
    kept = [mine[:: -(-len(mine) // MOST_OF_A_SOURCE)] for mine in places.values()]
    return np.array(sorted(index for mine in kept for index in mine), dtype=np.int64)


def source_weights(cases: Sequence[Case]) -> Floats:
    """Return the weight of each case: sources with many runs have no more say than SOURCE_WEIGHT runs, and those with
    few somewhat more than their number."""
    counts = Counter(case.run.source for case in cases)
    share = {source: min(count, SOURCE_WEIGHT) ** 0.7 * 3.0 / count for source, count in counts.items()}
    return np.array([share[case.run.source] for case in cases])


def solved(cases: Sequence[Case], linear: Linear, kept: Ints) -> Calibration:
    """Return the calibration that suits the cases with the indices `kept` best, in the linear picture. What none of
    them shows is at what is usual."""
    weights = source_weights(cases)[kept]
    spread = np.array([parameter.spread for parameter in linear.parameters])
    offset = np.array([np.log(usual_value(p) / value(linear.centre, p)) for p in linear.parameters])
    move = robust_move(linear.errors[kept], linear.slopes[kept], weights, offset, spread)
    return multiplied(linear.centre, dict(zip(linear.parameters, np.exp(move).tolist(), strict=True)))


def robust_move(errors: Floats, slopes: Floats, weights: Floats, offset: Floats, spread: Floats) -> Floats:
    """Return the move of the log parameters [P] that makes `errors` [N] + `slopes` [N, P] move small, by least squares
    reweighted for Student's t, with the prior N(offset, spread). No parameter moves by more than a factor e."""
    move = np.zeros_like(offset)
    for _ in range(30):
        left = errors + slopes @ move
        robust = weights * (FREEDOM + 1.0) / (FREEDOM + (left / NOISE) ** 2)
        normal = (slopes * robust[:, None]).T @ slopes / NOISE**2 + np.diag(spread**-2.0)
        right = -(slopes * robust[:, None]).T @ errors / NOISE**2 + offset / spread**2
        move = np.asarray(np.linalg.solve(normal, right), dtype=float)
    return np.clip(move, -1.0, 1.0)


def fitted(cases: Sequence[Case], efficiency: Efficiency) -> Calibration:
    """Return the calibration fitted to the cases of `thinned`."""
    cases = [cases[index] for index in thinned(cases)]
    start = replace(USUAL, rank_seconds=START_RANK_SECONDS)
    centre = replace(usual(cases), frameworks=dict.fromkeys(framework_names(), start))
    everyone = np.arange(len(cases))
    for _ in range(ITERATIONS):
        linear = linearised(cases, efficiency, centre)
        target = solved(cases, linear, everyone)
        loss = objective(cases, linear.errors, linear.parameters, centre)
        for share in STEPS:
            tried = between(linear.parameters, centre, target, share)
            less = objective(cases, log_errors(cases, efficiency, tried), linear.parameters, tried)
            if less < loss:
                centre = tried
                break
        else:
            return centre
        if less > (1.0 - ENOUGH) * loss:
            return centre
    return centre


def between(parameters: Sequence[OverheadParameter], start: Calibration, end: Calibration, share: float) -> Calibration:
    """Return the calibration on the way from one to another, in logarithms."""
    return multiplied(
        start, {parameter: (value(end, parameter) / value(start, parameter)) ** share for parameter in parameters}
    )


def objective(
    cases: Sequence[Case], errors: Floats, parameters: Sequence[OverheadParameter], calibration: Calibration
) -> float:
    """Return what the fit makes small: Student's t of the errors, and the prior."""
    robust = (FREEDOM + 1.0) / 2.0 * np.log1p((errors / NOISE) ** 2 / FREEDOM)
    moved = [
        np.log(value(calibration, parameter) / usual_value(parameter)) / parameter.spread for parameter in parameters
    ]
    return float(source_weights(cases) @ robust + 0.5 * np.square(moved).sum())
