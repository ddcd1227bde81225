"""The what-if page's server. The library would start a server of processes without PyTorch, from which later tests'
processes came too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests import forked
from tests.serving.what_if import served

from shardwright.serving.what_if.server import Server


@pytest.fixture(autouse=True, scope="session")
def _forked() -> None:
    forked.context()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as made:
        yield made
