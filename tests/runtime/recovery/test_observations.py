"""How far a generation is."""

from __future__ import annotations

from shardwright.runtime.recovery.fleet.observations import GenerationProgress


def test_a_step_is_there_once_all_machines_that_have_a_rank_have_it() -> None:
    """A machine that the plan has no rank for never has one, and is not waited for."""
    progress = GenerationProgress(ranks=2, machines=frozenset(("m0", "m1")))
    assert not progress.take("m0", 5)
    assert progress.take("m1", 5)
    progress.finished.update((("m0", 0), ("m1", 0)))
    found = [(progress.take(name, 10), progress.over) for name in ("m1", "m0")]
    assert found == [(False, False), (True, True)]
    assert list(progress.held) == [10]
