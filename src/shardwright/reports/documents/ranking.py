"""Rankings and evaluations as JSON documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from shardwright.errors import Problem
from shardwright.plans.document import to_document
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import (
    Baseline,
    Evaluation,
    NoPlan,
    NoProgram,
    Origin,
    PassedOver,
    Ranking,
    SearchReport,
    SpmdProgram,
    Usual,
    WithOptions,
)
from shardwright.reports.documents.findings import Document, finding_document
from shardwright.reports.text import outcome
from shardwright.reports.text.explain import (
    changes,
    gap_words,
    gaps,
    passed_over_words,
    shortages,
    telling_gaps,
    usual_words,
    verdict,
    with_options_words,
)
from shardwright.reports.text.plans import plan_chances, risk_document
from shardwright.reports.text.strategy import SETTINGS
from shardwright.rows import stated
from shardwright.search.renting import choice_on_cluster
from shardwright.units import format_bytes

if TYPE_CHECKING:
    from shardwright.reports.text.evaluation import Rung

VERSION = 2  # of the documents that commands print; 1 told reasons in English alone


def ranking_document(ranking: Ranking) -> Document:
    """Return what `plan --json` prints."""
    risks = [choice_on_cluster(plan) for plan in ranking.plans]
    chances = [dict(plan_chances(plan)) for plan in ranking.plans]
    risk_documents = [None if choice is None else risk_document(choice) for choice in risks]
    infeasible = None if ranking.infeasible is None else infeasible_document(ranking.infeasible)
    return {
        "version": VERSION,
        "plans": [to_document(plan) for plan in ranking.plans],
        **stated(
            {
                "infeasible": infeasible,
                "risk": risk_documents if any(risks) else None,
                "chances": chances if any(chances) else None,
            }
        ),
        "baselines": [_baseline(entry) for entry in ranking.baselines],
        **stated(
            {
                "kinds": [_baseline(entry) for entry in ranking.kinds] or None,
                "search": _search(ranking.search),
                "program": None if ranking.program is None else _program(ranking.program),
                "nearby": [asdict(row) for row in ranking.nearby],
                "fewer": None if ranking.fewer is None else [asdict(row) for row in ranking.fewer],
            }
        ),
        "trainers": [list(names) for names in ranking.trainers],
        "no_trainer": None if ranking.no_trainer is None else finding_document(ranking.no_trainer),
        "passed_over": None if ranking.passed_over is None else _passed_over(ranking.passed_over),
        "usual": None if ranking.usual is None else _usual(ranking.usual),
        "with_options": None if ranking.with_options is None else _with_options(ranking.with_options),
    }


def _program(program: SpmdProgram | NoProgram) -> Document:
    if isinstance(program, NoProgram):
        return {"kind": "no_program", "words": program.reason}
    return asdict(program)


def infeasible_document(infeasible: NoPlan) -> Document:
    """Return why there is no plan or no choice, and what would help, as `plan --json` and `shop --json` print it."""
    return {
        "reason": finding_document(infeasible.reason),
        "remedies": [finding_document(remedy) for remedy in infeasible.remedies],
    }


def _passed_over(better: PassedOver) -> Document:
    return {
        "iteration_seconds": better.plan.iteration_seconds,
        "saving": better.saving,
        "switches": [finding_document(switch) for switch in better.switches],
        "pins": list(better.pins),
        "words": passed_over_words(better),
    }


def _usual(usual: Usual) -> Document:
    return {
        "iteration_seconds": usual.plan.iteration_seconds,
        "loss": usual.loss,
        "pins": list(usual.pins),
        "words": usual_words(usual),
    }


def _with_options(better: WithOptions) -> Document:
    return {
        "iteration_seconds": better.plan.iteration_seconds,
        "saving": better.saving,
        "pins": list(better.pins),
        "words": with_options_words(better),
    }


def _baseline(entry: Baseline) -> Document:
    return {
        "rule": entry.rule,
        "iteration_seconds": None if entry.plan is None else entry.plan.iteration_seconds,
        "dollars": None if entry.plan is None else entry.plan.iteration_dollars,
        "reason": None if entry.failure is None else finding_document(entry.failure),
    }


def _search(report: SearchReport) -> Document:
    return {
        **({"interrupted": True} if report.interrupted else {}),
        "candidates": report.candidates,
        "costed": report.costed,
        "seconds": report.seconds,
        "rejected": [{**finding_document(rejection), "count": count} for rejection, count in report.rejected],
        "phases": dict(report.phases),
        "gap": report.gap,
        "indifference": report.indifference,
        "lower_bound_dollars": report.lower_bound_dollars,
        "not_covered": [finding_document(kind) for kind in report.not_covered],
    }


def evaluation_document(
    result: Evaluation,
    problems: Sequence[Problem],
    origin: Origin,
    rungs: Sequence[Rung] = (),
    measured: float | None = None,
) -> Document:
    """Return what `evaluate --json` prints; `measured` seconds of the user's own run scale those of the ladder."""
    mine, best = result.plan, result.best.plans[0] if result.best.plans else None
    missing = shortages(mine)
    return {
        "version": VERSION,
        "plan": to_document(mine),
        "legal": not problems,
        "violations": problem_documents(problems),
        "fits": not missing,
        "shortage": [{"kind": "stage_shortage", **asdict(stage)} for stage in missing],
        "remedies": [finding_document(remedy) for remedy in result.remedies],
        "measured": None if measured is None else _measured(mine, measured),
        "ladder": [_rung(rung, 1.0 if measured is None else measured / mine.iteration_seconds) for rung in rungs],
        "best": None if best is None else to_document(best),
        "no_trainer": None if result.best.no_trainer is None else finding_document(result.best.no_trainer),
        "verdict": asdict(verdict(mine, best, legal=not problems, gap=result.best.search.gap)),
        "settings": {} if best is None else _settings(mine, best),
        "terms": {} if best is None else _terms(mine, best),
        "differences": [] if best is None else list(_differences(mine, best)),
        "notes": list(origin.notes),
        "not_counted": list(origin.uncounted),
    }


def _settings(mine: Plan, best: Plan) -> Document:
    return {
        name: {"words": SETTINGS[name], "plan": value, "best": wanted}
        for name, (value, wanted) in changes(mine, best).items()
    }


def _terms(mine: Plan, best: Plan) -> Document:
    return {
        gap.name: {"plan": gap.mine_seconds, "best": gap.best_seconds, "difference": gap.seconds}
        for gap in gaps(mine, best)
    }


def _differences(mine: Plan, best: Plan) -> Iterator[Document]:
    """Yield what the best plan sets otherwise, then where its time differs and why, then the memory."""
    for name, (value, wanted) in changes(mine, best).items():
        yield {"kind": "setting", "setting": name, "words": f"{SETTINGS[name]}: {value}, the best has {wanted}"}
    for gap in telling_gaps(mine, best):
        yield {"kind": "time", "term": gap.name, "seconds": gap.seconds, "words": gap_words(gap, mine, best)}
    peak, least = (outcome.fullest(plan.predicted).total_bytes for plan in (mine, best))
    words = f"peak memory {format_bytes(peak)}, the best {format_bytes(least)}"
    yield {"kind": "memory", "plan_bytes": peak, "best_bytes": least, "words": words}


def _measured(mine: Plan, seconds: float) -> Document:
    low, high = mine.predicted.interval
    return {
        "seconds": seconds,
        "times_the_predicted": seconds / mine.iteration_seconds,
        "within_interval": low <= seconds <= high,
    }


def _rung(rung: Rung, scale: float) -> Document:
    return {
        "seconds": scale * rung.plan.iteration_seconds,
        "plan": to_document(rung.plan),
        "free": rung.free,
        "arguments": list(rung.added),
        "without": list(rung.removed),
    }


def problem_documents(problems: Sequence[Problem]) -> list[Document]:
    """Return problems as `evaluate --json` and `check --json` print them."""
    return [{"path": problem.path, "message": problem.message, "hint": problem.hint} for problem in problems]
