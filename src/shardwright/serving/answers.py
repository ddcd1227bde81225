"""Answers as plain data: the figures of a plan that a decision needs, and what is wrong with a request."""

from __future__ import annotations

from typing import Any

from shardwright.errors import SpecError
from shardwright.plans.plan import Plan
from shardwright.reports.documents.ranking import problem_documents
from shardwright.reports.text import mixed, outcome, strategy
from shardwright.reports.text.plans import settings_of
from shardwright.units import GIBIBYTE

Answer = dict[str, Any]


def plan_figures(plan: Plan) -> Answer:
    """Return the figures of a costed plan."""
    prediction = plan.predicted
    fullest = outcome.fullest(prediction)
    return {
        "strategy": strategy.degrees_words(plan) if plan.uniform else mixed.gpu_words(plan),
        "settings": dict(settings_of(plan)),
        "iteration_seconds": prediction.iteration_seconds,
        "interval_seconds": list(prediction.interval),
        "tokens_per_second": prediction.tokens_per_second,
        "mfu": prediction.mfu,
        "fullest_gpu_gib": fullest.total_bytes / GIBIBYTE,
        "fit_probability": prediction.fit_probability,
        "hours": prediction.hours_total,
        "dollars": prediction.dollars_total,
        "bottleneck": outcome.bottleneck(prediction),
        "ideal_seconds": prediction.ideal_seconds,
        "lower_bound_seconds": prediction.lower_bound_seconds,
    }


def error_answer(error: SpecError) -> Answer:
    """Return what is wrong with a request, each with its remedy."""
    return {"errors": problem_documents(error.problems)}
