"""Rankings and evaluations as JSON documents."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.errors import Problem
from shardwright.plan.document import to_document
from shardwright.plan.plan import Plan
from shardwright.plan.ranking import Baseline, Evaluation, Ranking, SearchReport
from shardwright.report.explain import differences, shortage, verdict

Document = Mapping[str, object]


def ranking_document(ranking: Ranking) -> Document:
    """Return what `plan --json` prints."""
    document: dict[str, object] = {"plans": [to_document(plan) for plan in ranking.plans]}
    if ranking.infeasible is not None:
        document["infeasible"] = {
            "reason": ranking.infeasible.reason,
            "remedies": list(ranking.infeasible.remedies),
        }
    document["baselines"] = [_baseline(entry) for entry in ranking.baselines]
    document["search"] = _search(ranking.search)
    return document


def _baseline(entry: Baseline) -> Document:
    prediction = entry.plan.prediction if entry.plan is not None else None
    return {
        "rule": entry.rule,
        "iteration_seconds": None if prediction is None else prediction.iteration_seconds,
        "reason": entry.reason,
    }


def _search(report: SearchReport) -> Document:
    return {
        "candidates": report.candidates,
        "costed": report.costed,
        "seconds": report.seconds,
        "rejected": dict(report.rejected),
        "phases": dict(report.phases),
    }


def evaluation_document(result: Evaluation, problems: tuple[Problem, ...], notes: tuple[str, ...]) -> Document:
    """Return what `evaluate --json` prints."""
    best: Plan | None = result.best.plans[0] if result.best.plans else None
    return {
        "plan": to_document(result.plan),
        "best": None if best is None else to_document(best),
        "verdict": verdict(result.plan, best),
        "differences": [] if best is None else list(differences(result.plan, best)),
        "shortage": list(shortage(result.plan)),
        "remedies": list(result.remedies),
        "violations": [{"path": p.path, "message": p.message, "hint": p.hint} for p in problems],
        "notes": list(notes),
    }
