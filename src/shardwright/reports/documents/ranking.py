"""Rankings and evaluations as JSON documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from shardwright.errors import Problem
from shardwright.plans.document import to_document
from shardwright.plans.ranking import Baseline, Evaluation, Origin, PassedOver, Ranking, SearchReport
from shardwright.reports.text.caution import passed_over_words
from shardwright.reports.text.explain import changes, differences, gaps, shortage, verdict
from shardwright.reports.text.ladder import Rung
from shardwright.reports.text.plans import predicted
from shardwright.reports.text.risk import risk_document
from shardwright.reports.words import in_words
from shardwright.search.renting.expected import choice_on_cluster

Document = Mapping[str, object]


def ranking_document(ranking: Ranking) -> Document:
    """Return what `plan --json` prints."""
    document: dict[str, object] = {"plans": [to_document(plan) for plan in ranking.plans]}
    if ranking.infeasible is not None:
        document["infeasible"] = {
            "reason": in_words(ranking.infeasible.reason),
            "remedies": [in_words(remedy) for remedy in ranking.infeasible.remedies],
        }
    risks = [choice_on_cluster(plan) for plan in ranking.plans]
    if any(risks):
        document["risk"] = [None if choice is None else risk_document(choice) for choice in risks]
    document["baselines"] = [_baseline(entry) for entry in ranking.baselines]
    if ranking.kinds:
        document["kinds"] = [_baseline(entry) for entry in ranking.kinds]
    document["search"] = _search(ranking.search)
    if ranking.program is not None:
        document["program"] = asdict(ranking.program)
    document["nearby"] = [asdict(row) for row in ranking.nearby]
    document["fewer"] = [asdict(row) for row in ranking.fewer]
    document["passed_over"] = None if ranking.passed_over is None else _passed_over(ranking.passed_over)
    return document


def _passed_over(found: PassedOver) -> Document:
    assert found.plan.prediction is not None, "it was costed"
    return {
        "iteration_seconds": found.plan.prediction.iteration_seconds,
        "saving": found.saving,
        "switches": [{"name": each.name, "runs": each.runs, "of": each.of} for each in found.switches],
        "pins": list(found.pins),
        "words": passed_over_words(found),
    }


def _baseline(entry: Baseline) -> Document:
    return {
        "rule": entry.rule,
        "iteration_seconds": None if entry.plan is None else predicted(entry.plan).iteration_seconds,
        "dollars": None if entry.plan is None else entry.plan.iteration_dollars,
        "reason": in_words(entry.failure) if entry.failure else "",
    }


def _search(report: SearchReport) -> Document:
    return {
        "candidates": report.candidates,
        "costed": report.costed,
        "seconds": report.seconds,
        "rejected": {in_words(rejection): count for rejection, count in report.rejected},
        "phases": dict(report.phases),
        "gap": report.gap,
        "lower_bound_dollars": report.lower_bound_dollars,
        "not_covered": [in_words(kind) for kind in report.not_covered],
    }


def evaluation_document(
    result: Evaluation, problems: Sequence[Problem], origin: Origin, rungs: Sequence[Rung] = ()
) -> Document:
    """Return what `evaluate --json` prints."""
    mine, best = result.plan, result.best.plans[0] if result.best.plans else None
    missing = list(shortage(mine))
    document: dict[str, object] = {
        "plan": to_document(mine),
        "legal": not problems,
        "violations": problem_documents(problems),
        "fits": not missing,
        "shortage": missing,
        "remedies": [in_words(remedy) for remedy in result.remedies],
        "ladder": [_rung(rung) for rung in rungs],
        "best": None,
        "verdict": verdict(mine, best, legal=not problems, gap=result.best.search.gap),
        "settings": {},
        "terms": {},
        "differences": [],
        "notes": list(origin.notes),
        "not_counted": list(origin.uncounted),
    }
    if best is not None:
        document["best"] = to_document(best)
        document["settings"] = {
            name: {"plan": value, "best": wanted} for name, (value, wanted) in changes(mine, best).items()
        }
        document["terms"] = {
            gap.name: {"plan": gap.mine_seconds, "best": gap.best_seconds, "difference": gap.seconds}
            for gap in gaps(mine, best)
        }
        document["differences"] = list(differences(mine, best))
    return document


def _rung(rung: Rung) -> Document:
    return {
        "plan": to_document(rung.plan),
        "free": rung.free,
        "arguments": list(rung.added),
        "without": list(rung.removed),
    }


def problem_documents(problems: Sequence[Problem]) -> list[Document]:
    """Return problems as `evaluate --json` and `check --json` print them."""
    return [{"path": problem.path, "message": problem.message, "hint": problem.hint} for problem in problems]
