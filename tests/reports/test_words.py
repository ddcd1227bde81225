"""Every finding has words of its own."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from enum import Enum

import pytest

from shardwright.plans import findings
from shardwright.reports.words import flagged, in_words

PARTS = (findings.JobLimits, findings.Need, findings.Rejection)  # of findings, or made of each cause
SAMPLES: dict[object, object] = {
    int: 3,
    float: 2.5e12,
    str: "H200",
    tuple[str, ...]: ("a", "b"),
    tuple[findings.Need, ...]: (),
}


def every_finding() -> Iterator[object]:
    for kind in vars(findings).values():
        if isinstance(kind, type) and issubclass(kind, Enum) and kind is not Enum:
            yield from kind if kind is not findings.Cause else map(findings.Rejection, findings.Cause)
        elif hasattr(kind, "__dataclass_fields__") and kind not in PARTS:
            yield kind(**{name: sample(hint) for name, hint in typing.get_type_hints(kind).items()})


def sample(hint: object) -> object:
    """Return a value of a field's type."""
    if isinstance(hint, types.UnionType):
        return sample(typing.get_args(hint)[0])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint))
    if hint is findings.JobLimits:
        return findings.JobLimits(deadline_hours=3.0, budget_dollars=100.0)
    return SAMPLES.get(hint, ())


@pytest.mark.parametrize("finding", list(every_finding()), ids=repr)
def test_a_finding_has_words(finding):
    assert in_words(finding).strip()
    assert "object at" not in in_words(finding)


def test_no_two_findings_have_the_same_words():
    said = [in_words(finding) for finding in every_finding()]
    assert len(set(said)) == len(said)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("`fit=`", "--fit"),
        ("`exportable_to=`", "--exportable-to"),
        ("plan with `seq_len=2048`, or measure again", "plan with --seq-len 2048, or measure again"),
        ("`set=tp=8`", "--set tp=8"),
        ("leave them out: `links=False`", "leave them out: --no-links"),
        ("`debug=True` shows more", "--debug shows more"),
        ("see `nvidia-smi`", "see `nvidia-smi`"),
    ],
)
def test_arguments_of_the_library_are_flags_of_the_command_line(text, words):
    assert flagged(text) == words
