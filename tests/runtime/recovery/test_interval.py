"""When snapshots are taken, and when training waits for one."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from shardwright.runtime.recovery.worker.snapshot import Interval


@pytest.mark.parametrize("every", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("delay", [0, 1, 4, 1000])
def test_training_is_never_further_than_an_interval_from_a_protected_step(every: int, delay: int) -> None:
    """Whatever protecting a snapshot takes: here so many steps, or as long as someone waits for it."""
    interval, protected, on_its_way = Interval(every=every, protected=0), 0, list[tuple[int, int, Future[None]]]()

    class Waited(Future[None]):
        def result(self, timeout: float | None = None) -> None:
            nonlocal protected
            protected = max(step for step, _, reply in on_its_way if reply is self)

    for step in range(1, 10 * every + 10):
        for taken, due, reply in on_its_way:
            if due <= step and not reply.done():
                protected = max(protected, taken)
                reply.set_result(None)
        interval.wait(step)
        assert step - protected <= every
        if interval.due(step):
            on_its_way.append((step, step + delay, reply := Waited()))
            interval.hand(step, reply)


def test_nobody_waits_where_protection_takes_less_than_a_tenth_of_the_interval() -> None:
    class Unwaited(Future[None]):
        def result(self, timeout: float | None = None) -> None:
            assert self.done()

    interval, reply = Interval(every=100, protected=0), Unwaited()
    for step in range(1, 1000):
        if step % 90 == 9:
            reply.set_result(None)
        interval.wait(step)
        if interval.due(step):
            assert step % 90 == 0
            interval.hand(step, reply := Unwaited())
