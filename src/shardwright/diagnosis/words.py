"""Causes in English, and what tells a trainer to mend them. The words stand in `data/causes.yaml`, those of records in
`data/records.yaml`; where a plan mends the cause, the arguments of Megatron-LM are the difference of the two plans."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from shardwright.diagnosis.causes import Finding
from shardwright.exporters.megatron.export import difference
from shardwright.files import shipped_file
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.reports.text.explain import changes
from shardwright.reports.text.strategy import SETTINGS
from shardwright.spec.text.reading import parse_yaml

NAMES = {"jax": "any", "eager": "fsdp", "megatron-2021": "megatron", "nanotron": "any"}


@record
class Advice:
    """A cause in words: what it is, what mends it, which settings of the plan change, and what to write."""

    title: str
    remedy: str
    settings: tuple[str, ...]
    flags: str


@record
class RecordAdvice:
    """What would tell more, and the command that records it."""

    name: str
    what: str
    command: str


def advice(finding: Finding, plan: Plan) -> Advice:
    """Return what to say of a cause found in a run of `plan`."""
    row, framework = _table("causes.yaml")[finding.cause], plan.job.framework
    settings: tuple[str, ...] = ()
    flags = str(_of(row["flags"], framework))
    if finding.plan is not None:
        pairs = changes(plan, finding.plan).items()
        settings = tuple(f"{SETTINGS[name]} {old} → {new}" for name, (old, new) in pairs)
        written = difference(plan, finding.plan) if framework == "megatron" and finding.plan.uniform else None
        if written is not None and (written.added or written.removed):
            without = f"without {' '.join(written.removed)}" if written.removed else ""
            flags = "; ".join(part for part in (" ".join(written.added), without) if part)
    return Advice(title=row["title"], remedy=row["remedy"], settings=settings, flags=flags)


def record_of(cause: str) -> str:
    """Return the name of the record that would tell whether a cause is there."""
    return str(_table("causes.yaml")[cause]["record"])


def record_advice(name: str, framework: str) -> RecordAdvice:
    """Return what a record is, and the command that makes it."""
    row = _table("records.yaml")[name]
    return RecordAdvice(name=name, what=row["what"], command=str(_of(row, framework)))


def _of(row: Mapping[str, Any], framework: str) -> Any:
    name = NAMES.get(framework, framework)
    return row.get(name) or row.get("any") or next(iter(row.values()))


@cache
def _table(name: str) -> Mapping[str, Any]:
    text = shipped_file("shardwright.diagnosis", name).decode()
    return parse_yaml(text, name)  # type: ignore[return-value]
