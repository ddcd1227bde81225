"""Ways to go on after machines came or went, by expected dollars per useful token."""

from __future__ import annotations

from math import inf

import pytest

from shardwright.recovery.decide import Phase, RecoveryOption, decide, dollars_per_token


def way(name: str, tokens_per_second: float, dollars_per_hour: float, pause_seconds: float) -> RecoveryOption:
    phase = Phase(tokens_per_second=tokens_per_second, pause_seconds=pause_seconds)
    return RecoveryOption(name=name, dollars_per_hour=dollars_per_hour, phases=(phase,))


FULL, LESS = way("wait", 100.0, 10.0, 900.0), way("replan", 60.0, 6.5, 60.0)


def test_dollars_per_token_by_hand() -> None:
    assert dollars_per_token(LESS, 3660.0) == pytest.approx(6.5 * 3660.0 / 3600.0 / (60.0 * 3600.0))
    assert dollars_per_token(FULL, 900.0) == inf


@pytest.mark.parametrize(("horizon_seconds", "name"), [(1_800.0, "replan"), (360_000.0, "wait")])
def test_waiting_pays_where_machines_stay_long(horizon_seconds: float, name: str) -> None:
    found = decide([FULL, LESS], horizon_seconds)
    assert [FULL, LESS][found.chosen].name == name
    assert found.reason.startswith(f"{name}: ") and "wait" in found.reason and "replan" in found.reason


def test_of_equal_ways_the_first_is_taken() -> None:
    assert decide([LESS, LESS], 3600.0).chosen == 0
