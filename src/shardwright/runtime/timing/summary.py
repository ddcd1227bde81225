"""What a run measured beside what the plan predicted: times by stage, bubble, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.learned import default_efficiency
from shardwright.errors import SpecError
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.runtime.layout.groups import Layout
from shardwright.units import format_bytes, format_seconds

SAME = 0.01  # predictions that differ by less are of one cost model


@record
class RankSummary:
    """Of one rank: medians over the steps of computing, of waiting for messages, of the passes as a whole, of waiting
    for samples and for gradient sums, and of the update; how far computing differs from step to step (the 90th
    percentile over the median, less 1); and the peak memory. On a CPU that is the whole process's, PyTorch included."""

    rank: int
    busy_seconds: float
    waiting_seconds: float
    span_seconds: float
    data_seconds: float
    sync_seconds: float
    update_seconds: float
    irregularity: float
    peak_memory_bytes: int

    @property
    def bubble(self) -> float:
        """The part of the passes in which the rank did not compute."""
        return 1.0 - self.busy_seconds / self.span_seconds if self.span_seconds else 0.0


def summary_document(
    layout: Layout, ranks: Sequence[RankSummary], step_seconds: Sequence[float], saving_seconds: Sequence[float] = ()
) -> dict[str, Any]:
    """Return measured and predicted figures as JSON data. The first step, which warms up, does not count;
    `saving_seconds` are those after each step in which training stood still for a checkpoint, a mean of which is kept.
    """
    plan = layout.plan
    measured = median(step_seconds[1:] or step_seconds)
    forecasts = stage_forecasts(plan)
    return {
        "iteration_seconds": measured,
        "predicted_iteration_seconds": None if plan.prediction is None else plan.prediction.iteration_seconds,
        "tokens_per_second": plan.job.tokens_per_iteration / measured,
        "saving_seconds": sum(saving_seconds) / max(len(saving_seconds), 1),
        "ranks": [_rank_document(layout, rank, forecasts) for rank in ranks],
    }


def summary_text(document: dict[str, Any]) -> str:
    """Return the same as text for a terminal: what was measured, and in brackets what was predicted."""
    predicted = document["predicted_iteration_seconds"]
    beside = ""
    if predicted:
        error = document["iteration_seconds"] / predicted - 1.0
        beside = f", predicted {format_seconds(predicted)} (measured is {error:+.0%})"
    lines = [
        f"iteration {format_seconds(document['iteration_seconds'])}{beside}",
        f"{'rank':>4} {'stage':>6} {'computes':>22} {'waits for messages':>19} {'bubble':>11} {'peak memory':>24}",
    ]
    lines += [
        f"{rank['rank']:>4} {rank['stage']:>6} "
        f"{_both(rank['busy_seconds'], rank['predicted_busy_seconds'], format_seconds):>22} "
        f"{format_seconds(rank['waiting_seconds']):>19} "
        f"{_both(rank['bubble'], rank['predicted_bubble'], '{:.0%}'.format):>11} "
        f"{_both(rank['peak_memory_bytes'], rank['predicted_memory_bytes'], format_bytes):>24}"
        for rank in document["ranks"]
    ]
    return "\n".join(lines)


def _both(measured: float, predicted: float | None, words: Callable[[float], str]) -> str:
    return f"{words(measured)} ({'-' if predicted is None else words(predicted)})"


def _rank_document(layout: Layout, rank: RankSummary, forecasts: Sequence[Sequence[StageForecast]]) -> dict[str, Any]:
    place = layout.places[rank.rank]
    forecast = forecasts[place.replica][place.stage] if forecasts else None
    return {
        "rank": rank.rank,
        "stage": f"{place.replica}.{place.copy}/{place.stage}",
        "busy_seconds": rank.busy_seconds,
        "predicted_busy_seconds": forecast and forecast.busy_seconds,
        "waiting_seconds": rank.waiting_seconds,
        "span_seconds": rank.span_seconds,
        "data_seconds": rank.data_seconds,
        "sync_seconds": rank.sync_seconds,
        "update_seconds": rank.update_seconds,
        "irregularity": rank.irregularity,
        "bubble": rank.bubble,
        "predicted_bubble": forecast and forecast.bubble,
        "peak_memory_bytes": rank.peak_memory_bytes,
        "predicted_memory_bytes": layout.predicted_bytes(place),
    }


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
        iteration = mixed_iteration(plan, default_efficiency())
    except SpecError:  # a GPU of which only a profile knows
        return ()
    if abs(iteration.seconds / plan.prediction.iteration_seconds - 1.0) > SAME:
        return ()
    forecasts = []
    for replica, times in zip(plan.replicas, iteration.replicas, strict=True):
        busy = replica.micro_batches * (times.stages.forward + times.stages.backward)[0].sum(axis=0)
        forecasts.append(
            tuple(
                StageForecast(busy_seconds=float(seconds), bubble=float(1.0 - seconds / times.pipeline_seconds))
                for seconds in busy
            )
        )
    return tuple(forecasts)
