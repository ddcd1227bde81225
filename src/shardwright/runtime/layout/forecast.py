"""What the cost model says of each stage of a plan, to stand beside what a run measured."""

from __future__ import annotations

from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.learned import default_efficiency
from shardwright.errors import SpecError
from shardwright.plans.plan import Plan
from shardwright.records import record

SAME = 0.01  # predictions that differ by less are of one cost model


@record
class StageForecast:
    """Seconds of a step in which a rank of a stage computes, and the part of its pipeline's time in which it waits."""

    busy_seconds: float
    bubble: float


def stage_forecasts(plan: Plan) -> tuple[tuple[StageForecast, ...], ...]:
    """Return the forecast of every stage of every replica, nothing where the plan has no prediction, or one that was
    made from a profile: the plan file has no times of stages, and without the profile they would be others."""
    if plan.prediction is None:
        return ()
    try:
        found = mixed_iteration(plan, default_efficiency())
    except SpecError:  # a GPU of which only a profile knows
        return ()
    if abs(found.seconds / plan.prediction.iteration_seconds - 1.0) > SAME:
        return ()
    forecasts = []
    for replica, times in zip(plan.replicas, found.replicas, strict=True):
        busy = replica.micro_batches * (times.stages.forward + times.stages.backward)[0].sum(axis=0)
        forecasts.append(
            tuple(
                StageForecast(busy_seconds=float(each), bubble=float(1.0 - each / times.pipeline_seconds))
                for each in busy
            )
        )
    return tuple(forecasts)
