"""Groups that are made again in a process which was halted while it made some."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.runtime.recovery.fleet import copies

from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.recovery import reform
from shardwright.runtime.recovery.generation_store import GenerationStore


def test_a_group_that_was_never_made_has_no_number() -> None:
    """Ranks find each other by names that count groups: all must count alike, wherever each was halted."""
    asked: list[str] = []

    def halted(_what: str, payload: bytes = b"", **fields: Any) -> Any:
        asked.append(str(fields))
        raise RuntimeError("the generation is over")

    for _ in range(2):
        store = GenerationStore(halted, 5.0)
        with pytest.raises(RuntimeError, match="the generation is over"):
            reform.form(layout_of(copies(2)), 0, store, torch.device("cpu"), 5.0, reform.Sockets())
        reform.tear_down()
    assert len(asked) == 2 and asked[0] == asked[1]
