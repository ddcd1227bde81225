"""A simulation of spot machines as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwright.recovery.simulation.replay import TraceOutcome
from shardwright.recovery.simulation.traces import Trace
from shardwright.reports.documents.ranking import VERSION

KEYS = {  # of the causes of hours, and of the places that state comes from
    "useful work": "useful_work",
    "fewer machines": "fewer_machines",
    "waiting": "waiting",
    "re-forming": "reforming",
    "moving state": "moving_state",
    "work done anew": "repeated_work",
    "snapshots": "snapshots",
    "own memory": "own_memory",
    "peers' memory": "peers_memory",
    "cloud": "cloud",
}


def spot_document(trace: Trace, outcomes: Sequence[TraceOutcome]) -> dict[str, Any]:
    """Return what came of each strategy on a trace."""
    return {
        "version": VERSION,
        "trace": {"name": trace.name, "hours": trace.hours, "places": [list(place) for place in trace.places]},
        "strategies": [
            {
                "strategy": item.strategy,
                "useful_tokens": item.tokens,
                "dollars": item.dollars,
                "dollars_per_million_tokens": item.dollars_per_million_tokens if item.tokens else None,
                "hours": {KEYS[cause]: hours for cause, hours in item.hours.items()},
                "losses": item.losses,
                "recoveries": item.recoveries,
                "moved_bytes": {KEYS[place]: size for place, size in item.moved_bytes.items()},
            }
            for item in outcomes
        ],
    }
