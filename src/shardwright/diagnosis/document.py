"""A diagnosis as a JSON document: the figures of the screen, and what the page of `report` draws."""

from __future__ import annotations

from typing import Any

from shardwright.diagnosis.causes import Finding
from shardwright.diagnosis.diagnose import Diagnosis
from shardwright.diagnosis.memory import MemoryAccount
from shardwright.diagnosis.text import memory_terms, untold_words, verdict_words
from shardwright.diagnosis.words import advice, record_advice
from shardwright.plans.document import to_document
from shardwright.plans.plan import Plan
from shardwright.reports.words import in_words
from shardwright.traces.figures import RankFigures

Document = dict[str, Any]


def diagnosis_document(result: Diagnosis) -> Document:
    """Return a diagnosis as JSON data."""
    case, framework = result.case, result.case.plan.job.framework
    document: Document = {
        "diagnosis": 1,
        "verdict": result.verdict,
        "words": " ".join(part for part in (verdict_words(result), untold_words(result)) if part),
        "expected_seconds": case.expected_seconds,
        "interval_seconds": list(case.prediction.interval),
        "step_seconds": case.step_seconds,
        "unexplained_seconds": result.unexplained_seconds,
        "cannot_be_told": result.untold,
        "terms": [
            {
                "name": term.name,
                "expected_seconds": term.expected_seconds,
                "measured_seconds": term.measured_seconds,
                "hidden_seconds": term.hidden_seconds,
            }
            for term in result.terms
        ],
        "causes": [_finding(row, case.plan) for row in result.findings],
        "records": [
            {"name": row.name, "what": row.what, "command": row.command}
            for row in (record_advice(name, framework) for name in result.records)
        ],
        "ranks": [_rank(rank) for rank in case.ranks],
        "memory": None if result.memory is None else _memory(result.memory),
        "plan": to_document(case.plan),
        "best": None if result.best is None else to_document(result.best),
    }
    return document


def _finding(row: Finding, plan: Plan) -> Document:
    words = advice(row, plan)
    return {
        "name": row.cause,
        "title": words.title,
        "basis": row.basis,
        "detail": row.detail,
        "seconds": row.seconds,
        "saving_seconds": row.saving_seconds,
        "evidence": list(row.evidence),
        "remedy": words.remedy,
        "changes": list(words.settings),
        "flags": words.flags,
    }


def _rank(rank: RankFigures) -> Document:
    return {
        "rank": rank.rank,
        "source": rank.source,
        "steps": rank.steps,
        "step_seconds": rank.step_seconds,
        "compute_seconds": rank.compute_seconds,
        "optimizer_seconds": rank.optimizer_seconds,
        "data_seconds": rank.data_seconds,
        "idle_seconds": rank.idle_seconds,
        "copy_seconds": rank.copy_seconds,
        "timeline": [list(span) for span in rank.timeline],
        "collectives": [
            {
                "kind": call.kind,
                "group": call.group,
                "ranks": call.ranks,
                "calls": call.calls,
                "hidden_seconds": call.hidden_seconds,
                "exposed_seconds": call.exposed_seconds,
            }
            for call in rank.collectives
        ],
    }


def _memory(account: MemoryAccount) -> Document:
    return {
        "replica": account.replica,
        "stage": account.stage,
        "account_bytes": memory_terms(account.expected),
        "account_total_bytes": account.expected.total_bytes,
        "allocated_bytes": account.allocated_bytes,
        "reserved_bytes": account.reserved_bytes,
        "needed_bytes": account.needed_bytes,
        "capacity_bytes": account.capacity_bytes,
        "notes": list(account.notes),
        "changes": [in_words(change) for change in account.changes],
    }
