"""What a search found, on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Baseline, Ranking, SearchReport
from shardwright.reports.text import mixed, programs, question, strategy
from shardwright.reports.text.explain import (
    contrast,
    kinds_text,
    passed_over_words,
    rare_words,
    saving,
    unit,
    usual_words,
    value,
)
from shardwright.reports.text.layout import WIDTH, labelled, listed, paragraphs, reasoned, wrapped
from shardwright.reports.text.plans import plan_text, plans_table, risk_text, whole_run
from shardwright.reports.words import explained, in_words, pools_assumed
from shardwright.search.renting import choice_on_cluster
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.units import clock, format_count, format_seconds


def ranking_text(ranking: Ranking, width: int = WIDTH) -> str:
    """Return the report of a search that found plans."""
    best = ranking.best
    parts = [
        heading(best.model, best.cluster, best.job, width),
        summary_text(ranking, width),
        plans_table(ranking.plans, width),
        plan_text(best, "Best plan", width),
        _risk_text(best, width),
        runners_up_text(ranking.plans, width),
        baselines_text(ranking.baselines, best, width),
        kinds_text(ranking.kinds, best, width),
        programs.program_text(ranking, width),
        certificate_text(best, ranking.search, width),
        caution_text(ranking, width),
        search_text(ranking.search, width),
        assumptions_text(best.model, best.cluster, width),
    ]
    return paragraphs(parts)


def _risk_text(best: Plan, width: int) -> str:
    """Return what preemptions do to the run, where machines can be taken back."""
    choice = choice_on_cluster(best)
    return risk_text(choice, width) if choice is not None else ""


def heading(model: Model, cluster: Cluster, job: Job, width: int) -> str:
    """Return what was planned for, headed by what was guessed of the model."""
    asked = (question.model_line(model), question.cluster_line(cluster), question.job_line(job))
    guessed = [f"Guessed, not known: {words}" for words in model.guesses]
    note = question.beyond_positions(model, job)
    lines = (*guessed, *asked, question.images_line(model, job), note)
    return "\n".join(wrapped(line, "", width) for line in lines if line)


def summary_text(ranking: Ranking, width: int) -> str:
    """Return the answer in two or three sentences."""
    best, prediction = ranking.best, ranking.best.predicted
    seconds, run, against = prediction.iteration_seconds, whole_run(best), against_rules(ranking)
    sentences = (
        f"{clock(seconds, like=seconds)} an iteration, {format_count(prediction.tokens_per_second)} tokens/s, "
        f"MFU {prediction.mfu:.1%}.",
        f"All tokens in {run}." if run else "",
        mixed.idle_sentence(ranking),
        f"{against[0].upper()}{against[1:]}." if against else "",
    )
    return wrapped(" ".join(sentence for sentence in sentences if sentence), "", width)


def against_rules(ranking: Ranking) -> str:
    """Return how the best plan stands against the best rule of thumb: 20% less time (1.25× as fast) than it."""
    best, rivals = ranking.best, [entry.plan for entry in ranking.baselines if entry.plan is not None]
    if not rivals:
        return ""
    rival = min(rivals, key=value)
    better = value(best) < 0.9995 * value(rival)
    return (f"{saving(rival, best)} than" if better else "as good as") + " the best rule of thumb"


def runners_up_text(plans: Sequence[Plan], width: int) -> str:
    """Return what keeps the plans after the first behind it."""
    best, *others = plans
    points = [
        f"{place}: {_beyond(other, best):+.2%} {unit(best)}: {contrast(other, best)}"
        + (f"; rarely used: {rare}" if (rare := rare_words(other, best)) else "")
        for place, other in enumerate(others, start=2)
    ]
    return listed("Why the others come after it", points, width)


def baselines_text(baselines: Sequence[Baseline], best: Plan, width: int) -> str:
    """Return what experts' rules of thumb give, against the best."""
    if not baselines:
        return ""
    lines = ["What an expert would try"]
    for entry in baselines:
        if entry.plan is None:
            lines.append(labelled("  –", f"{entry.rule}: {in_words(entry.failure)}", width, column=20))
        else:
            worse = _beyond(entry.plan, best)
            seconds = entry.plan.iteration_seconds
            figures = f"{clock(seconds, like=best.iteration_seconds):>11} {worse:+7.0%}"
            figures += " $" if unit(best) == "money" else ""
            words = f"{entry.rule}: {strategy.degrees_words(entry.plan)}"
            lines.append(labelled(figures, words, width, column=20))
    return "\n".join(lines)


def _beyond(other: Plan, best: Plan) -> float:
    """Return how much more another plan takes or costs, in parts of the best, which may cost nothing."""
    mine, least = value(other), value(best)
    if mine == least:
        return 0.0
    return mine / least - 1.0 if least else math.inf


def certificate_text(best: Plan, report: SearchReport, width: int) -> str:
    """Return how far from the best the plan can be, where types can be mixed."""
    words = mixed.certificate(best, report)
    return wrapped(f"Certificate: {words}", "", width) if words else ""


def caution_text(ranking: Ranking, width: int) -> str:
    """Return what a better plan has that hardly any published run has, and what the best plan without such takes."""
    words = "; ".join(part for part in (passed_over_words(ranking.passed_over), usual_words(ranking.usual)) if part)
    return wrapped(f"Caution: {words}.", "", width) if words else ""


def search_text(report: SearchReport, width: int) -> str:
    """Return how the search went and what fell out."""
    rate = report.candidates / max(report.seconds, 1e-9)
    words = (
        f"Search: {report.candidates:,} candidates in {format_seconds(report.seconds)} "
        f"({format_count(rate)} a second), {report.costed:,} costed one by one"
    )
    lines = [wrapped(words, "", width)]
    for rejection, count in report.rejected:
        lines.append(labelled(f"{count:>16,} ", explained(rejection), width, column=17))
    phases = ", ".join(f"{name} {seconds * 1e3:.0f}" for name, seconds in report.phases)
    return "\n".join([*lines, wrapped(f"phases in ms: {phases}", "  ", width)] if phases else lines)


def assumptions_text(model: Model, cluster: Cluster, width: int) -> str:
    """Return what was assumed because nobody said it."""
    return listed("Assumed", [*model.assumed, *pools_assumed(cluster.pools)], width)


def infeasible_text(ranking: Ranking, model: Model, cluster: Cluster, job: Job, width: int = WIDTH) -> str:
    """Return why nothing was found, and what would change that."""
    assert ranking.infeasible is not None, "only for searches that found nothing"
    reason = f"No plan: {in_words(ranking.infeasible.reason)}"
    remedies = [in_words(remedy) for remedy in ranking.infeasible.remedies]
    parts = [
        heading(model, cluster, job, width),
        reasoned(reason, remedies, width),
        _failed_rules(ranking.baselines, width),
        search_text(ranking.search, width) if ranking.search.candidates else "",
        assumptions_text(model, cluster, width),
    ]
    return paragraphs(parts)


def _failed_rules(baselines: Sequence[Baseline], width: int) -> str:
    """Return why no rule of thumb works either; nothing where one does, as rules know neither pins nor budgets."""
    if any(entry.plan is not None for entry in baselines):
        return ""
    return listed(
        "What an expert would try", [f"{entry.rule}: {in_words(entry.failure)}" for entry in baselines], width
    )
