"""Cases of a test for `make nightly` alone, beside those of every run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def nightly(cases: Iterable[object]) -> list[Any]:
    """Return parameters of which the ordinary run makes no tests; a tuple is a case of several."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly) for case in cases]
