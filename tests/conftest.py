"""What holds for all tests: an ordinary run makes none that only `make nightly` runs."""

from __future__ import annotations

import pytest

from tests import nightly


@pytest.hookimpl(trylast=True)  # Hypothesis loads its own profile first
def pytest_configure(config: pytest.Config) -> None:
    nightly.wanted = config.option.markexpr != nightly.ORDINARY
    nightly.draw_fewer()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(obj: object) -> list[pytest.Item] | None:
    marks = [] if nightly.wanted else getattr(obj, "pytestmark", [])
    return [] if any(mark.name == "nightly" for mark in marks) else None
