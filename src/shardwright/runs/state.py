"""The good state of a run: what a step takes when nothing is in its way.

Steps are told apart by their seconds and by what the file says between them:

* warm-up: the steps before the first that is as fast as the good state, after every start
* evaluation, checkpoint: slower steps beside one
* periodic: slower steps at one distance, where no line tells why: most often checkpoints or evaluations
* straggler, stall: other slower steps, below and above `STALLED` times the median
* fast: steps that did less, such as one that was skipped

The good state is the lowest cluster of the logarithms of seconds that holds `LEAST` of the steps. Clusters are parted
where that lowers the variance within them most (Otsu 1979), as long as they lie apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from shardwright.arrays import Array, Bools, Floats
from shardwright.errors import bad
from shardwright.records import record
from shardwright.runs.run import MeasuredRun, Steps

GOOD, WARM_UP, EVALUATION, CHECKPOINT, PERIODIC, STRAGGLER, STALL, FAST = (
    "good",
    "warm-up",
    "evaluation",
    "checkpoint",
    "periodic",
    "straggler",
    "stall",
    "fast",
)
UNTIMED = "untimed"  # a row without seconds, such as the first of a progress bar
LEAST = 0.25  # of the steps, which the good state has at least; chosen, 0.15 to 0.35
APART = 3.0  # standard deviations between the means of two clusters; chosen, 2.5 to 4
SLOWER = 0.06  # by which a step is slower than the good state at least; chosen, 0.04 to 0.1
STALLED = 2.0  # times the median, above which a slow step stalls; chosen, 1.5 to 3
LONG_ROWS = 3  # times the usual steps of a row, which more do not weigh: they hold what lies between; chosen, 2 to 5
REGULAR = 4  # slow steps at one distance that are called periodic; chosen, 3 to 6


@record
class LeftOut:
    """Steps that are not of the good state for one reason, and the seconds that they took beyond it."""

    steps: int
    extra_seconds: float


@record
class GoodState:
    """The good state of a run. `seconds` is the median of an iteration, between the tenth and the ninetieth percentile
    `low_seconds` and `high_seconds`; `spread` the robust standard deviation of its logarithm; `steps` how many
    iterations it rests on. `bad_share` is the part of all iterations after warm-up that straggled or stalled;
    `left_out` has the reasons. `labels` says of each row of `Steps` what it is, [N].
    """

    seconds: float
    low_seconds: float
    high_seconds: float
    spread: float
    steps: int
    bad_share: float
    left_out: Mapping[str, LeftOut]
    labels: Array


def good_state(run: MeasuredRun) -> GoodState:
    """Return the good state of a run. Raises SpecError where no step has a time, or none after warm-up."""
    steps = run.steps
    timed = np.isfinite(steps.seconds)
    if not timed.any():
        hint = "say batch and sequence length, by the launch (`launch=`) or a plan, or log times"
        raise bad(run.name, "no step has a time", hint)
    seconds = np.where(timed, steps.seconds, np.inf)
    weights = np.minimum(steps.covers, LONG_ROWS * np.median(steps.covers)).astype(float)
    middle, width = _lowest_cluster(steps.seconds[timed], weights[timed])
    limit = math.log(middle) + max(APART * width, math.log1p(SLOWER))
    least = math.log(middle) - max(APART * width, math.log1p(SLOWER))
    logs = np.log(seconds)
    slow, fast = logs > limit, logs < least
    labels = np.full(len(steps), GOOD, dtype="U10")
    slow &= timed
    labels[fast] = FAST
    labels[~timed] = UNTIMED
    labels[slow] = np.where(seconds[slow] > STALLED * middle, STALL, STRAGGLER)
    _name_periodic(labels, steps)
    _name_events(labels, run, slow)
    _name_warm_up(labels, run, slow)
    good = (labels == GOOD) & timed
    low, median, high = _percentiles(steps.seconds[good], weights[good], (0.1, 0.5, 0.9))
    return GoodState(
        seconds=median,
        low_seconds=low,
        high_seconds=high,
        spread=_spread(np.log(steps.seconds[good]), weights[good]),
        steps=int(steps.covers[good].sum()),
        bad_share=_bad_share(labels, steps),
        left_out={
            name: _left_out(steps, (labels == name) & timed, median)
            for name in (WARM_UP, EVALUATION, CHECKPOINT, PERIODIC, STRAGGLER, STALL, FAST)
            if (labels == name).any()
        },
        labels=labels,
    )


def _left_out(steps: Steps, rows: Bools, median: float) -> LeftOut:
    covers = steps.covers[rows]
    extra = float(((steps.seconds[rows] - median) * covers).sum())
    return LeftOut(steps=int(covers.sum()), extra_seconds=extra)


def _bad_share(labels: Array, steps: Steps) -> float:
    bad_rows = (labels == STRAGGLER) | (labels == STALL)
    rest = (labels != WARM_UP) & (labels != UNTIMED)
    return float(steps.covers[bad_rows].sum() / max(steps.covers[rest].sum(), 1))


def _lowest_cluster(seconds: Floats, weights: Floats) -> tuple[float, float]:
    """Return the median of the good state and the robust standard deviation of its logarithm."""
    order = np.argsort(seconds, kind="stable")
    logs, weights = np.log(seconds[order]), weights[order]
    total = weights.sum()
    first, last = 0, len(logs)
    while last - first > 1:
        cut = _cut(logs[first:last], weights[first:last])
        if cut is None:
            break
        if weights[first : first + cut].sum() >= LEAST * total:
            last = first + cut
        elif weights[first + cut : last].sum() >= LEAST * total:
            first += cut
        else:
            break
    logs, weights = logs[first:last], weights[first:last]
    (middle,) = _percentiles(logs, weights, (0.5,))
    return math.exp(middle), _spread(logs, weights)


def _cut(logs: Floats, weights: Floats) -> int | None:
    """Return before which of some ascending values two clusters part, None where they are one."""
    sums, values, squares = (np.cumsum(weights * power) for power in (np.ones_like(logs), logs, logs**2))
    left, right = sums[:-1], sums[-1] - sums[:-1]
    means = values[:-1] / left, (values[-1] - values[:-1]) / right
    between = left * right * (means[1] - means[0]) ** 2
    cut = int(np.argmax(between))
    variances = (
        squares[cut] / left[cut] - means[0][cut] ** 2,
        (squares[-1] - squares[cut]) / right[cut] - (means[1][cut] ** 2),
    )
    gap = means[1][cut] - means[0][cut]
    # Even a single normal cluster is cut into halves whose means lie 2.6 of their deviations apart.
    within = math.sqrt(max(variances[0], 0.0)) + math.sqrt(max(variances[1], 0.0))
    return cut + 1 if gap > math.log1p(SLOWER) and gap > APART * within / 2.0 * 1.5 else None


def _spread(logs: Floats, weights: Floats) -> float:
    """Return the robust standard deviation of logarithms, from their median distance to the median."""
    (middle,) = _percentiles(logs, weights, (0.5,))
    (distance,) = _percentiles(np.abs(logs - middle), weights, (0.5,))
    return 1.4826 * distance


def _percentiles(values: Floats, weights: Floats, parts: tuple[float, ...]) -> tuple[float, ...]:
    """Return weighted percentiles: the least value at which that part of the weight is reached; the middle of two where
    it is reached exactly."""
    order = np.argsort(values, kind="stable")
    ordered, sums = values[order], np.cumsum(weights[order])
    ends = []
    for part in parts:
        low = int(np.searchsorted(sums, part * sums[-1], side="left"))
        high = int(np.searchsorted(sums, part * sums[-1], side="right"))
        ends.append(float((ordered[low] + ordered[min(high, len(ordered) - 1)]) / 2.0))
    return tuple(ends)


def _name_periodic(labels: Array, steps: Steps) -> None:
    """Name slow rows periodic that come at one distance, like checkpoints of which no line tells."""
    places = np.flatnonzero((labels == STRAGGLER) | (labels == STALL))
    if len(places) < REGULAR:
        return
    gaps = np.diff(steps.step[places])
    values, counts = np.unique(gaps, return_counts=True)
    period = int(values[np.argmax(counts)])
    # Neighbours are a stretch, not a rhythm.
    if period < 3 or counts.max() < max(REGULAR - 1, 0.6 * len(gaps)):
        return
    phases, of = np.unique(steps.step[places] % period, return_inverse=True)
    common = int(np.argmax(np.bincount(of)))
    labels[places[steps.step[places] % period == phases[common]]] = PERIODIC


def _name_events(labels: Array, run: MeasuredRun, slow: Bools) -> None:
    """Name slow rows after the evaluation or checkpoint that lies between them and the row before."""
    lines = run.steps.line
    for event in run.events:
        if event.kind not in (EVALUATION, CHECKPOINT):
            continue
        after = int(np.searchsorted(lines, event.line))
        # A trainer may tell of it behind the line of the step whose time holds it.
        for place in (after, after - 1):
            if 0 <= place < len(labels) and slow[place] and labels[place] not in (EVALUATION, CHECKPOINT):
                labels[place] = event.kind
                break


def _name_warm_up(labels: Array, run: MeasuredRun, slow: Bools) -> None:
    """Name slow rows at the start, and after every restart, warm-up."""
    restarts = [int(np.searchsorted(run.steps.line, event.line)) for event in run.events if event.kind == "restart"]
    for start in (0, *restarts):
        place = start
        while place < len(labels) and (slow[place] or labels[place] == UNTIMED):
            labels[place] = WARM_UP if slow[place] else UNTIMED
            place += 1
