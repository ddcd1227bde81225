"""The nearest plan that a target can run, in words."""

from __future__ import annotations

from shardwright.plans.plan import Plan
from shardwright.reports.text import describe
from shardwright.reports.text.mixed import gpu_words
from shardwright.units import clock

ALIKE = 0.0005  # part of the time of a plan that is not worth a word


def nearest_words(plan: Plan, other: Plan) -> str:
    """Return what `other`, which a target can run in place of `plan`, is and costs, both with predictions."""
    assert other.prediction is not None, "a search costs its plans"
    seconds = other.prediction.iteration_seconds
    words = f"the nearest plan that it can run takes {clock(seconds, like=seconds)} an iteration"
    if plan.prediction is not None:
        more = seconds / plan.prediction.iteration_seconds - 1.0
        than = "as long" if abs(more) < ALIKE else f"{abs(more):.1%} {'more' if more > 0 else 'less'}"
        words += f", {than} (priced as {other.job.framework} runs it)"
    return f"{words}: {gpu_words(other)}, {describe.degrees_words(other)}"
