"""Short answers of the library as plain data: the figures that a decision needs, and what to try next."""

from __future__ import annotations

from typing import Any

from shardwright.diagnosis.diagnose import Diagnosis
from shardwright.diagnosis.report import diagnosis_document
from shardwright.errors import SpecError
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Ranking
from shardwright.reports.documents.ranking import problem_documents
from shardwright.reports.html.page_of import answer
from shardwright.reports.text import mixed, outcome, strategy
from shardwright.reports.text.plans import predicted, settings_of
from shardwright.reports.text.shop import rented_words
from shardwright.reports.words import in_words
from shardwright.search.market.result import Shopping
from shardwright.search.renting import FrontPoint
from shardwright.search.sizing import Sizing
from shardwright.units import GIBIBYTE

Answer = dict[str, Any]


def plan_answer(ranking: Ranking) -> Answer:
    """Return the best plan and its alternatives, or why there is none."""
    if ranking.infeasible is not None:
        return {
            "answer": f"No plan: {in_words(ranking.infeasible.reason)}.",
            "next": [in_words(remedy) for remedy in ranking.infeasible.remedies],
        }
    best = ranking.best
    return {
        "answer": answer(best),
        "best": plan_figures(best),
        "alternatives": [plan_figures(plan) for plan in ranking.plans[1:]],
        "next": _next(best),
    }


def plan_figures(plan: Plan) -> Answer:
    """Return the figures of a costed plan."""
    prediction = predicted(plan)
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


def _next(plan: Plan) -> list[str]:
    prediction = predicted(plan)
    hints = ["export: the files that make a trainer run this plan"]
    if plan.job.tokens is None:
        hints.append("give tokens to get hours and dollars of the whole run")
    if mixed.idle_words(plan):
        hints.append(f"idle GPUs: {mixed.idle_words(plan)}; another global batch may use them")
    if prediction.interval[1] > 1.6 * prediction.iteration_seconds:
        hints.append("the interval is wide: few published runs are near; measure with `shardwright profile`")
    return hints


def sizing_answer(sizing: Sizing) -> Answer:
    """Return which ways to train fit, and what would make the others fit."""
    rows = [
        {
            "way": size.way.name,
            "fits": size.fits,
            "gib": size.memory.total_bytes / GIBIBYTE,
            "of_gib": size.memory.capacity_bytes / GIBIBYTE,
            "fit_probability": size.fit_probability,
            "longest_sequence": size.longest_sequence,
            "largest_micro_batch": size.largest_micro_batch,
            "fewest_gpus": size.fewest_gpus,
            "smallest_gpu": size.smallest_gpu,
        }
        for size in sizing.sizes
    ]
    names = [size.way.name for size in sizing.sizes if size.fits]
    return {
        "answer": f"Fits: {', '.join(names)}." if names else "Nothing fits.",
        "ways": rows,
        "next": ["plan, with the same GPUs, for speed and cost"] if names else ["more GPUs, or a GPU with more memory"],
    }


def shop_answer(result: Shopping) -> Answer:
    """Return the picks of a front, and the front itself in short."""
    picks = {
        "knee": result.picks.knee,
        "cheapest_within_deadline": result.picks.cheapest_in_time,
        "fastest_within_budget": result.picks.fastest_in_budget,
    }
    return {
        "answer": _shop_sentence(result),
        "picks": {name: _rented(result, result.front[place]) for name, place in picks.items() if place is not None},
        "front": [_rented(result, choice) for choice in result.front],
        "next": ["plan, with the machines of a choice, for its strategy"],
    }


def _shop_sentence(result: Shopping) -> str:
    if result.infeasible is not None:
        return f"No choice: {in_words(result.infeasible.reason)}."
    place = result.picks.cheapest_in_time
    chosen = result.front[result.picks.knee or 0 if place is None else place]
    return f"Rent {rented_words(chosen, result.offers)}: {chosen.hours:,.0f} hours, ${chosen.dollars:,.0f}."


def _rented(result: Shopping, choice: FrontPoint) -> Answer:
    return {
        "rent": rented_words(choice, result.offers),
        "gpus": choice.gpus,
        "hours": choice.hours,
        "dollars": choice.dollars,
        "interruptions": choice.interruptions,
    }


def diagnosis_answer(result: Diagnosis) -> Answer:
    """Return why a run is slow: the verdict, the causes with what mends them, and what would tell more."""
    document = diagnosis_document(result)
    keys = ("name", "title", "basis", "saving_seconds", "evidence", "remedy", "changes", "flags")
    return {
        "answer": document["words"],
        "verdict": document["verdict"],
        "expected_seconds": document["expected_seconds"],
        "interval_seconds": document["interval_seconds"],
        "terms": document["terms"],
        "causes": [{key: cause[key] for key in keys} for cause in document["causes"]],
        "memory": document["memory"],
        "next": [f"record {row['what']}: {row['command']}" for row in document["records"]],
    }


def error_answer(error: SpecError) -> Answer:
    """Return what is wrong with a request, each with its remedy."""
    return {"errors": problem_documents(error.problems)}
