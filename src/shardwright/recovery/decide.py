"""Whether a run goes on as it was, under a new plan, or waits for machines: by expected dollars per useful token.

Over the H seconds until machines are expected to change again, a way that pauses for p seconds and then trains r tokens
a second gives r (H - p) useful tokens, and costs the price of all machines that are kept for H seconds:

    dollars per token = price_per_hour H / 3600 / (r max(H - p, 0))

The rates and prices are those that plans are chosen by, so what happens in a run and what planning expects agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from shardwright.units import SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to go on: what it is, in words, what it trains and costs, and for how long nothing is trained before."""

    name: str
    tokens_per_second: float
    dollars_per_hour: float
    pause_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The way chosen, by its number, and why, in a line for the log."""

    chosen: int
    reason: str


def dollars_per_token(way: Way, horizon_seconds: float) -> float:
    """Return the expected dollars per useful token of a way until machines change again."""
    tokens = way.tokens_per_second * max(horizon_seconds - way.pause_seconds, 0.0)
    return way.dollars_per_hour * horizon_seconds / SECONDS_PER_HOUR / tokens if tokens else inf


def decide(ways: Sequence[Way], horizon_seconds: float) -> Decision:
    """Return the cheapest way by useful tokens; of equal ones the first. There must be one."""
    costs = [dollars_per_token(way, horizon_seconds) for way in ways]
    chosen = min(range(len(ways)), key=lambda number: (costs[number], number))
    shown = [f"{way.name} {_words(cost)}" for way, cost in zip(ways, costs, strict=True)]
    return Decision(chosen=chosen, reason=f"{ways[chosen].name}: dollars per million tokens are {', '.join(shown)}")


def _words(cost: float) -> str:
    return "infinite" if cost == inf else f"{cost * 1e6:.4g}"
