"""The library would start a server of processes without PyTorch, from which later tests' processes came too."""

from __future__ import annotations

import pytest
from tests import forked


@pytest.fixture(autouse=True, scope="session")
def _forked() -> None:
    forked.context()
