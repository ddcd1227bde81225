"""A simulation of spot machines as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwright.recovery.simulation.outcome import TraceOutcome
from shardwright.recovery.simulation.traces import Trace


def spot_document(trace: Trace, outcomes: Sequence[TraceOutcome]) -> dict[str, Any]:
    """Return what came of each strategy on a trace."""
    return {
        "trace": {"name": trace.name, "hours": trace.hours, "places": [list(place) for place in trace.places]},
        "strategies": [
            {
                "strategy": item.strategy,
                "useful_tokens": item.tokens,
                "dollars": item.dollars,
                "dollars_per_million_tokens": item.dollars_per_million_tokens if item.tokens else None,
                "hours": dict(item.hours),
                "losses": item.losses,
                "recoveries": item.recoveries,
                "moved_bytes": dict(item.moved_bytes),
            }
            for item in outcomes
        ],
    }
