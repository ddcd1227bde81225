"""Whether a run goes on as it was, under a new plan, or waits for machines: by expected dollars per useful token.

A way to go on has phases: fewer machines now, for example, and all of them once others have come. In a phase of l
seconds that begins with a pause of p seconds and then trains r tokens a second, machines are lost λ times a second;
after the first loss it pauses for q seconds and goes on with s tokens a second. The useful tokens expected of it are,
with L = max(l - p, 0) and L' = max(L - q, 0),

    r (1 - exp(-λ L)) / λ  +  s (L' - (1 - exp(-λ L')) / λ)

the liveput of Parcae (Duan et al., NSDI '24) for one loss. Over the H seconds that a decision looks ahead, a way costs
the price of all machines that are kept:

    dollars per token = price_per_hour H / 3600 / expected tokens

The rates and prices are those that plans are chosen by, so what happens in a run and what planning expects agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1, inf

from shardwright.records import record
from shardwright.units import SECONDS_PER_HOUR


@record
class Phase:
    """From `begin_seconds` on: a pause, then so many tokens a second; how often an hour a machine in use is lost, and
    what is trained after the first such loss and another pause."""

    tokens_per_second: float
    pause_seconds: float
    begin_seconds: float = 0.0
    losses_per_hour: float = 0.0
    then_tokens_per_second: float = 0.0
    then_pause_seconds: float = 0.0


@record
class RecoveryOption:
    """A way to go on: what it is, in words, what it costs, and its phases in order of time."""

    name: str
    dollars_per_hour: float
    phases: tuple[Phase, ...]


@record
class RecoveryDecision:
    """The way chosen, by its number, and why, in a line for the log."""

    chosen: int
    reason: str


def expected_tokens(way: RecoveryOption, horizon_seconds: float) -> float:
    """Return the useful tokens that a way is expected to give."""
    ends = [min(phase.begin_seconds, horizon_seconds) for phase in way.phases[1:]] + [horizon_seconds]
    return sum(_of_phase(phase, end - phase.begin_seconds) for phase, end in zip(way.phases, ends, strict=True))


def _of_phase(phase: Phase, seconds: float) -> float:
    left = max(seconds - phase.pause_seconds, 0.0)
    after = max(left - phase.then_pause_seconds, 0.0)
    rate = phase.losses_per_hour / SECONDS_PER_HOUR
    if not rate:
        return phase.tokens_per_second * left
    lost = after - _before_loss(rate, after)
    return phase.tokens_per_second * _before_loss(rate, left) + phase.then_tokens_per_second * lost


def dollars_per_token(way: RecoveryOption, horizon_seconds: float) -> float:
    """Return the expected dollars per useful token of a way."""
    tokens = expected_tokens(way, horizon_seconds)
    return way.dollars_per_hour * horizon_seconds / SECONDS_PER_HOUR / tokens if tokens else inf


def decide(ways: Sequence[RecoveryOption], horizon_seconds: float) -> RecoveryDecision:
    """Return the cheapest way by useful tokens; of equal ones the first. There must be one."""
    costs = [dollars_per_token(way, horizon_seconds) for way in ways]
    chosen = min(range(len(ways)), key=lambda number: (costs[number], number))
    shown = [f"{way.name} {_words(cost)}" for way, cost in zip(ways, costs, strict=True)]
    return RecoveryDecision(
        chosen=chosen, reason=f"{ways[chosen].name}: dollars per million tokens are {', '.join(shown)}"
    )


def _before_loss(rate: float, seconds: float) -> float:
    """Return the expected seconds until the first loss, or until `seconds` are over."""
    return -expm1(-rate * seconds) / rate


def _words(cost: float) -> str:
    return "infinite" if cost == inf else f"{cost * 1e6:.4g}"
