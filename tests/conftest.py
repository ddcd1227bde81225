"""What holds for all tests: an ordinary run makes none that only `make nightly` runs, and none takes a second processor."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import nightly

TESTS = Path(__file__).parent


@pytest.hookimpl(trylast=True)  # Hypothesis loads its own profile first
def pytest_configure(config: pytest.Config) -> None:
    nightly.wanted = config.option.markexpr != nightly.ORDINARY
    nightly.draw_fewer()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is imported and collected stays to the end, so the garbage collector need not go through it over and over."""
    gc.disable()
    try:
        compile_a_part_first(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def compile_a_part_first(config: pytest.Config) -> None:
    """Import a part of all test modules, another one in each process of an ordinary run. In a clean checkout pytest
    rewrites and compiles each then, which takes longer than all else of a collection, and the other processes read what
    one has written."""
    process = getattr(config, "workerinput", None)
    if process is None or [Path(argument).resolve() for argument in config.args] != [TESTS]:
        return
    names = [
        ".".join(file.relative_to(TESTS.parent).with_suffix("").parts) for file in sorted(TESTS.rglob("test_*.py"))
    ]
    number, count = int(process["workerid"].removeprefix("gw")), process["workercount"]
    for name in names[len(names) * number // count : len(names) * (number + 1) // count]:
        with suppress(Exception, pytest.skip.Exception):  # the collection says it
            importlib.import_module(name)


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
