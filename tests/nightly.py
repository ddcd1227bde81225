"""Cases and tests for `make nightly` alone, beside those of every run, which does not even make them (`conftest`): they
are twice as many. Properties are tried on fewer examples in an ordinary run, the first of those of a night."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest
from hypothesis import settings

ORDINARY = "not nightly"  # what an ordinary run selects (pyproject.toml)
wanted = True  # whether the run may have them
FEWER = 3  # an ordinary run draws one in so many of a property's examples


def nightly(cases: Iterable[object]) -> list[Any]:
    """Return parameters of which the ordinary run makes no tests; a tuple is a case of several."""
    some = islice(cases, None if wanted else 1)  # none at all would be a test without parameters
    every = (case if isinstance(case, tuple) else (case,) for case in some)
    return [pytest.param(*case, marks=pytest.mark.nightly) for case in every]


def examples(count: int) -> int:
    """Return on how many of `count` examples this run tries a property."""
    return count if wanted else -(-count // FEWER)


def draw_fewer() -> None:
    """Let properties that do not say on how many examples they are tried have fewer in an ordinary run."""
    settings.register_profile("shardwright", max_examples=examples(settings().max_examples))
    settings.load_profile("shardwright")
