"""The closed form of a step's time against a walk through its events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.arrays import Floats
from shardwright.synthesis.choice import Events, step_seconds
from shardwright.synthesis.machines import OVERLAP_SLOWDOWN


def walked(events: Events) -> float:
    """Return the time of a step whose nodes all run once, event by event."""
    clock = np.zeros(events.compute.shape[1])
    urgent = used = busy = 0.0
    parts = zip(events.compute, events.blocking, events.deferred, events.early, strict=True)
    for node, (work, hold, later, ahead) in enumerate(parts):
        if node == events.loss:
            urgent, used = max(urgent, clock.max()), max(used, busy, clock.max())
        urgent, used = urgent + ahead, used + ahead
        clock = (np.maximum(clock, urgent) if ahead else clock) + work
        busy = max(busy, clock.max()) + hold + later if hold or later else busy
        urgent, used = urgent + hold, used + hold + later
        clock = np.full_like(clock, clock.max() + hold) if hold else clock
    hidden = OVERLAP_SLOWDOWN * (events.deferred.sum() + events.early.sum())
    return float(max(clock.max(), busy, used) + hidden)


def drawn(seed: int) -> Events:
    random = np.random.default_rng(seed)
    count, classes = int(random.integers(2, 14)), int(random.integers(1, 4))

    def some() -> Floats:
        here = random.random(count) < random.random()
        return np.asarray(here * random.choice([0.1, 1.0, 5.0]) * random.random(count))

    return Events(
        compute=random.random((count, classes)),
        blocking=some(),
        deferred=some(),
        early=some(),
        weights=np.ones(count),
        loss=int(random.integers(1, count)),
    )


@given(seed=st.integers(0, 2**32 - 1))
def test_the_closed_form_is_the_walk(seed: int) -> None:
    events = drawn(seed)
    assert step_seconds(events).total == pytest.approx(walked(events), rel=1e-12)


def test_what_the_backward_gathers_waits_for_it_and_delays_gradients() -> None:
    """One device: a forward of 4 s whose network is idle; then 1 s of computation, a gradient of 3 s, a parameter of 2 s
    that the next second of computation needs."""
    none = np.zeros(3)
    events = Events(
        compute=np.array([[4.0], [1.0], [1.0]]),
        blocking=none,
        deferred=np.array([0.0, 3.0, 0.0]),
        early=np.array([0.0, 0.0, 2.0]),
        weights=np.ones(3),
        loss=1,
    )
    found = step_seconds(events)
    assert found.total - OVERLAP_SLOWDOWN * 5.0 == pytest.approx(4.0 + 2.0 + 3.0)
    assert found.exposed == pytest.approx(2.0)
