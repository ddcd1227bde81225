"""Times of the units of a rank, measured within a step, and of its passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from shardwright.cost.pipeline.schedule import BACKWARD
from shardwright.runtime.step.pipeline import Event
from shardwright.runtime.step.timestamps import seconds_between

NO_PASS = 1 << 30


def clock(device: torch.device) -> Callable[[], float]:
    """Return a clock that waits until the device has done what it was given."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


@dataclass(slots=True)
class Stopwatch:
    """Forward and backward seconds of each unit, one entry a micro-batch, from the moments at which activations and
    their gradients appear. Show it the activations (`observe`) and the operations (`record`) of a step."""

    now: Callable[[], float]
    forward: dict[int, list[float]] = field(default_factory=dict)
    backward: dict[int, list[float]] = field(default_factory=dict)
    _last: tuple[int, float] = (NO_PASS, 0.0)
    _stamps: list[tuple[int, float]] = field(default_factory=list)

    def observe(self, unit: int, x: torch.Tensor) -> torch.Tensor:
        """Take the time at which the output of `unit` is there, and will be of its gradient."""
        moment = self.now()
        before, began = self._last
        if unit > before:
            _share(self.forward, before, unit, moment - began)
        self._last = (unit, self.now())
        if x.requires_grad:
            tensor: Any = x
            tensor.register_hook(lambda _: self._stamps.append((unit, self.now())))
        return x

    def record(self, event: Event) -> None:
        """Close an operation: after a backward pass, share its time between the moments seen."""
        self._last = (NO_PASS, 0.0)  # the next observation begins a pass
        if event.operation.kind == BACKWARD and self._stamps:
            stamps = self._stamps
            if event.operation.virtual_stage == 0:  # tokens have no gradient: the pass ends with the embedding's
                stamps = [*stamps, (-1, self.now())]
            for (unit, began), (lower, ended) in pairwise(stamps):
                _share(self.backward, lower, unit, ended - began)
        self._stamps.clear()


def _share(times: dict[int, list[float]], below: int, unit: int, seconds: float) -> None:
    """Give equal parts of a time to the units above `below` up to `unit`."""
    for number in range(below + 1, unit + 1):
        times.setdefault(number, []).append(seconds / (unit - below))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Of one rank in one step: seconds of computing, of waiting for messages, and from first to last operation."""

    busy_seconds: float
    waiting_seconds: float
    span_seconds: float


def stage_time(events: Sequence[Event]) -> StageTime:
    """Return the times of a rank from the events of a step that is over."""
    return StageTime(
        busy_seconds=sum(seconds_between(event.began, event.ended) for event in events),
        waiting_seconds=sum(seconds_between(event.asked, event.began) for event in events),
        span_seconds=seconds_between(events[0].asked, events[-1].ended),
    )
