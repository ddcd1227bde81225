"""What a run measured beside what the plan predicted: times by stage, bubble, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from shardwright.runtime.groups import Layout
from shardwright.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """Of one rank: medians over the steps of computing, of waiting for messages and of the passes as a whole, and the
    peak memory. On a CPU that is the whole process's, PyTorch included."""

    rank: int
    busy_seconds: float
    waiting_seconds: float
    span_seconds: float
    peak_memory_bytes: int

    @property
    def bubble(self) -> float:
        """The part of the passes in which the rank did not compute."""
        return 1.0 - self.busy_seconds / self.span_seconds if self.span_seconds else 0.0


def summary_document(layout: Layout, ranks: Sequence[RankSummary], step_seconds: Sequence[float]) -> dict[str, Any]:
    """Return measured and predicted figures as JSON data. The first step, which warms up, does not count."""
    plan = layout.plan
    measured = median(step_seconds[1:] or step_seconds)
    prediction = plan.prediction
    predicted = None if prediction is None else prediction.iteration_seconds
    bubble = None
    if prediction is not None and prediction.iteration_seconds:
        bubble = prediction.time.bubble_seconds / prediction.iteration_seconds
    return {
        "iteration_seconds": measured,
        "predicted_iteration_seconds": predicted,
        "tokens_per_second": plan.job.tokens_per_iteration / measured,
        "predicted_bubble": bubble,
        "ranks": [_rank_document(layout, rank) for rank in ranks],
    }


def summary_text(document: dict[str, Any]) -> str:
    """Return the same as text for a terminal."""
    predicted = document["predicted_iteration_seconds"]
    beside = ""
    if predicted:
        error = document["iteration_seconds"] / predicted - 1.0
        beside = f", predicted {format_seconds(predicted)} (measured is {error:+.0%})"
    lines = [f"iteration {format_seconds(document['iteration_seconds'])}{beside}"]
    if document["predicted_bubble"] is not None:
        lines.append(f"predicted bubble {document['predicted_bubble']:.0%}")
    lines.append(
        f"{'rank':>4} {'stage':>6} {'computes':>10} {'waits':>10} {'idle':>6} {'peak memory':>12} {'predicted':>10}"
    )
    for rank in document["ranks"]:
        memory = rank["predicted_memory_bytes"]
        lines.append(
            f"{rank['rank']:>4} {rank['stage']:>6} {format_seconds(rank['busy_seconds']):>10} "
            f"{format_seconds(rank['waiting_seconds']):>10} {rank['bubble']:>6.0%} "
            f"{format_bytes(rank['peak_memory_bytes']):>12} {'-' if memory is None else format_bytes(memory):>10}"
        )
    return "\n".join(lines)


def _rank_document(layout: Layout, rank: RankSummary) -> dict[str, Any]:
    place = layout.places[rank.rank]
    prediction = layout.plan.prediction
    memory = None
    if prediction is not None and place.replica < len(prediction.memory):
        memory = prediction.memory[place.replica][place.stage].total_bytes
    return {
        "rank": rank.rank,
        "stage": f"{place.replica}.{place.copy}/{place.stage}",
        "busy_seconds": rank.busy_seconds,
        "waiting_seconds": rank.waiting_seconds,
        "bubble": rank.bubble,
        "peak_memory_bytes": rank.peak_memory_bytes,
        "predicted_memory_bytes": memory,
    }
