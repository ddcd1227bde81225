"""What holds for all tests: an ordinary run makes none that only `make nightly` runs, and none takes a second processor."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator

import pytest

from tests import nightly


@pytest.hookimpl(trylast=True)  # Hypothesis loads its own profile first
def pytest_configure(config: pytest.Config) -> None:
    nightly.wanted = config.option.markexpr != nightly.ORDINARY
    nightly.draw_fewer()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end, so the garbage collector need not go through it over and over."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(obj: object) -> list[pytest.Item] | None:
    marks = [] if nightly.wanted else getattr(obj, "pytestmark", [])
    return [] if any(mark.name == "nightly" for mark in marks) else None


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and threads of several processes wait for each other."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
