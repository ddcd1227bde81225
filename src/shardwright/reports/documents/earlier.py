"""Rankings and searches over offers as version 1 printed them (releases up to 0.1), brought to today's version.

Version 1 has no key `version`, tells reasons in English alone, and keys the candidates that fell out by it. What has no
kind there gets `said`; the words stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.errors import bad
from shardwright.plans.document import EARLIER, job_of_today
from shardwright.reports.documents.ranking import VERSION

CAUSES = {
    "memory": "memory",
    "pruned by bound": "bound",
    "budget or deadline": "limits",
    "dominated": "dominated",
    "not in the layer profile": "unmeasured",
    "pruned by bound or not needed": "not_needed",
}


def current(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a ranking, or what `shop --json` printed, in today's version. Raises SpecError for a later version."""
    version = document.get("version", 1)
    if version == VERSION:
        return document
    if version != 1:
        raise bad("version", f"is {version!r}", f"this release reads versions 1 and {VERSION}; print it anew")
    changed = {name: change(document[name]) for name, change in CHANGES.items() if name in document}
    return {**_with_jobs_of_today(document), "version": VERSION, **changed}


def _with_jobs_of_today(value: Any) -> Any:
    """Return a value with each job in it as it is written today."""
    if isinstance(value, list):
        return [_with_jobs_of_today(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    inner = {key: _with_jobs_of_today(item) for key, item in value.items()}
    return job_of_today(inner) if EARLIER & inner.keys() else inner


def _search(report: Mapping[str, Any]) -> Mapping[str, Any]:
    changed = {"not_covered": [_said(words) for words in report["not_covered"]]}
    if "rejected" in report:  # in that of plans, not of offers
        changed["rejected"] = [_rejection(words) | {"count": count} for words, count in report["rejected"].items()]
    return {**report, **changed}


def _infeasible(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    remedies = [_said(words) for words in entry.get("remedies", ())]
    return {"reason": _said(entry["reason"]), "remedies": remedies}


def _reasons(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [{**entry, "reason": _said(entry["reason"])} for entry in entries]


def _said(words: str) -> Mapping[str, str] | None:
    return {"kind": "said", "words": words} if words else None


def _rejection(words: str) -> dict[str, Any]:
    rule = words.removeprefix("rule ")
    if words not in CAUSES and rule != words:
        return {"kind": "rule", "rule": rule, "words": words}
    return {"kind": CAUSES.get(words, "said"), "words": words}


CHANGES: Mapping[str, Callable[[Any], Any]] = {
    "search": _search,
    "infeasible": _infeasible,
    "baselines": _reasons,
    "kinds": _reasons,
}
