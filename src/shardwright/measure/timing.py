"""How long something takes when it is repeated without a pause, as in training.

A burst of a few repetitions finds cold clocks and cool silicon; training finds neither. So everything is repeated for a
fixed time at least, in batches long enough for the clock, and the median over the batches is the result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any

from shardwright.measure.device import MeasuredDevice, synchronize
from shardwright.records import record

Call = Callable[[], object]
BATCH_SECONDS = 5e-3
FEWEST_BATCHES, MOST_REPEATS = 3, 100_000
WARM_UP_SHARE = 0.2


@record
class Timing:
    """Median seconds of one call, and the distance between the quartiles as a part of it."""

    seconds: float
    spread: float


def sustained(calls: Sequence[Call], device: MeasuredDevice, at_least_seconds: float) -> Timing:
    """Return the time of one call when `calls`, which do the same on other memory, are repeated in turn.

    A fifth of the time goes to warming up. Batches are of equal length, up to `BATCH_SECONDS`, and at least three.
    """
    timer = cuda_batch if device.backend == "cuda" else host_batch
    turn = cycle(calls)
    first = timer(turn, 1)
    once = min(timer(turn, 1), first)
    batch_seconds = min(BATCH_SECONDS, at_least_seconds / FEWEST_BATCHES)
    repeats = min(max(round(batch_seconds / max(once, 1e-9)), 1), MOST_REPEATS)
    for _ in until(WARM_UP_SHARE * at_least_seconds):
        timer(turn, repeats)
    return timing([timer(turn, repeats) for _ in until((1.0 - WARM_UP_SHARE) * at_least_seconds, FEWEST_BATCHES)])


def until(seconds: float, fewest: int = 0) -> Iterator[None]:
    """Yield until `seconds` have gone by, and `fewest` times at least."""
    begin, done = time.perf_counter(), 0
    while done < fewest or time.perf_counter() - begin < seconds:
        yield
        done += 1


def timing(samples: Sequence[float]) -> Timing:
    """Return median and relative distance of the quartiles of some samples."""
    middle = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else (middle, middle, middle)
    return Timing(seconds=middle, spread=max(high - low, 0.0) / middle)


def host_batch(turn: Iterator[Call], repeats: int) -> float:
    """Return the seconds of one of `repeats` calls by the host's clock."""
    begin = time.perf_counter()
    for call in islice(turn, repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def cuda_batch(turn: Iterator[Call], repeats: int) -> float:
    """Return the seconds of one of `repeats` calls by the events of the current stream."""
    import torch

    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    for call in islice(turn, repeats):
        call()
    end.record()
    synchronize("cuda")
    return float(begin.elapsed_time(end)) * 1e-3 / repeats
