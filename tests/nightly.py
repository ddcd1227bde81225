"""Cases and tests for `make nightly` alone, beside those of every run, which does not even make them (`conftest`): they
are twice as many."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest

ORDINARY = "not nightly"  # what an ordinary run selects (pyproject.toml)
wanted = True  # whether the run may have them


def nightly(cases: Iterable[object]) -> list[Any]:
    """Return parameters of which the ordinary run makes no tests; a tuple is a case of several."""
    some = islice(cases, None if wanted else 1)  # none at all would be a test without parameters
    every = (case if isinstance(case, tuple) else (case,) for case in some)
    return [pytest.param(*case, marks=pytest.mark.nightly) for case in every]
