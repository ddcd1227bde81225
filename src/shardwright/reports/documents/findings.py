"""Findings as JSON: `kind` is what a program asks for, the finding's fields are its figures, `words` are for people.

A kind is the name of the finding's type or of its member of an enumeration (`too_little_memory`, `virtual_stages`): an
edit of the English in `reports.words` changes neither a kind nor a key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from shardwright.plans.findings import Rejection
from shardwright.reports.words import in_words

Document = Mapping[str, object]


def finding_document(finding: object) -> Document:
    """Return a finding with its kind, its figures and its words; a figure that is not finite is null."""
    return {"kind": kind_of(finding), **_figures(finding), "words": in_words(finding)}


def kind_of(finding: object) -> str:
    """Return the identifier of a finding: too_little_memory."""
    member = finding.cause if isinstance(finding, Rejection) else finding
    if isinstance(member, Enum):
        return member.name.lower()
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(member).__name__).lower()


def _figures(finding: object) -> dict[str, object]:
    if isinstance(finding, Rejection):
        return {"rule": finding.rule} if finding.rule else {}
    if isinstance(finding, Enum):
        return {}
    return {field.name: _plain(getattr(finding, field.name)) for field in fields(finding)}  # type: ignore[arg-type]


def _plain(value: Any) -> object:
    """Return JSON data of a field: a part of a finding is its kind or its own figures."""
    if isinstance(value, Enum):
        return kind_of(value)
    if is_dataclass(value):
        return _figures(value)
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
