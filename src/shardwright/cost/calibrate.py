"""From plans and what they took to the calibration of a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.learned import default_efficiency
from shardwright.cost.predict import predict
from shardwright.cost.site.calibration import MOST_RUNS, NOISE, SiteCalibration, SiteRun
from shardwright.cost.site.setting import setting_of
from shardwright.cost.trust.evidence import ceiling
from shardwright.errors import Problem, bad, reject
from shardwright.plans.plan import Plan
from shardwright.records import record

MOST_BAD = 0.5  # of the steps of a run, which may straggle or stall; chosen, 0.3 to 0.6
FARTHEST = 2.4  # times the prediction or a part of it, beyond which a run stalls or is not its plan; chosen, 2 to 3


@record
class Measured:
    """What a plan took on the site: seconds of an iteration in its good state, the standard deviation of their
    logarithm (0: not known), the part of its steps that straggled or stalled, and the name of the run for messages."""

    plan: Plan
    seconds: float
    name: str
    spread: float = 0.0
    bad_share: float = 0.0


def calibrate(
    runs: Sequence[Measured],
    efficiency: Efficiency | None = None,
    *,
    profiles: Sequence[str] = (),
    anonymous: bool = False,
) -> SiteCalibration:
    """Return the calibration that some runs of one site make; `efficiency` is the model of time without it, by default
    the one that ships, and has the measured profiles of the GPUs `profiles` in it. Twins, runs of one configuration,
    count once, by their median. `anonymous` leaves the names of models out.

    Raises SpecError without a run, with more than 50 configurations, and for runs that stall or are so far from their
    prediction, or so near to the peak of their GPUs, that they cannot be what their plan says.
    """
    if not runs:
        raise bad("runs", "are missing", "give at least one run: its log with the plan or launch that it ran")
    efficiency = efficiency or default_efficiency()
    problems: list[Problem] = []
    rows: dict[tuple[object, ...], list[SiteRun]] = {}
    for run in runs:
        row = _row(run, efficiency, problems)
        key = (row.setting, row.predicted_seconds, run.plan.model.name)
        rows.setdefault(key, []).append(replace(row, model="" if anonymous else row.model))
    reject(problems)
    if len(rows) > MOST_RUNS:
        message = f"are {len(rows)} configurations, twins counted once; a calibration holds {MOST_RUNS}"
        raise bad("runs", message, "give those that are most like what you plan")
    return SiteCalibration(runs=tuple(map(_joined, rows.values())), profiles=tuple(sorted(set(profiles))))


def _row(run: Measured, efficiency: Efficiency, problems: list[Problem]) -> SiteRun:
    prediction = predict(run.plan, efficiency)
    setting, predicted = setting_of(run.plan, prediction.time), prediction.iteration_seconds
    hint = "check that this plan is what ran, and its batch; a stalled run is none to calibrate on"
    if run.bad_share > MOST_BAD:
        message = f"{run.bad_share:.0%} of its steps stall or straggle: it says nothing of a healthy run"
        problems.append(Problem(run.name, message, "mend what slows it (`shardwright diagnose`), or give another run"))
    elif not 1.0 / FARTHEST < run.seconds / predicted < FARTHEST:
        message = f"took {run.seconds:.3g} s, {run.seconds / predicted:.2g} times the {predicted:.3g} s predicted"
        problems.append(Problem(run.name, f"{message}: no healthy site differs so much", hint))
    elif (mfu := prediction.mfu * predicted / run.seconds) > (most := _highest_mfu(run.plan)):
        message = f"took {run.seconds:.3g} s, an MFU of {mfu:.0%}: {most:.0%} is more than any published run comes near"
        problems.append(Problem(run.name, message, hint))
    return SiteRun(
        setting=setting,
        measured_seconds=run.seconds,
        predicted_seconds=predicted,
        spread=max(run.spread, NOISE),
        model=run.plan.model.name,
    )


def _highest_mfu(plan: Plan) -> float:
    used = [pool.gpu for pool in plan.cluster.pools if plan.gpus_by_type[pool.gpu.name]]
    return max(ceiling(gpu.architecture, plan.job.precision) for gpu in used)


def _joined(twins: Sequence[SiteRun]) -> SiteRun:
    """Return runs of one configuration as one, by their median."""
    seconds = median(run.measured_seconds for run in twins)
    return replace(twins[0], measured_seconds=seconds, spread=median(run.spread for run in twins), twins=len(twins))
