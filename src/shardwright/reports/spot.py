"""A simulation of spot machines, on a terminal and as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardwright.recovery.simulation.replay import CAUSES, TraceOutcome
from shardwright.recovery.simulation.traces import Trace
from shardwright.reports.documents.ranking import VERSION
from shardwright.reports.text.layout import table
from shardwright.units import format_bytes, format_count, format_dollars

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


def spot_text(trace: Trace, outcomes: Sequence[TraceOutcome]) -> str:
    """Return what came of each strategy on a trace, and where its hours went."""
    return "\n\n".join(_parts(trace, outcomes))


def _parts(trace: Trace, outcomes: Sequence[TraceOutcome]) -> Iterator[str]:
    zones = len({zone for zone, _ in trace.places})
    first = outcomes[0]
    cheapest = first.dollars_per_million_tokens if first.tokens else 0.0
    yield (
        f"trace {trace.name}: {trace.hours / 24:.3g} days, {zones} zones; the run lost {first.losses} machines, "
        f"and {first.strategy} trained {format_count(first.tokens)} useful tokens"
    )
    rows = [
        (
            item.strategy,
            format_count(item.tokens),
            format_dollars(item.dollars),
            f"{item.dollars_per_million_tokens:.4f}" if item.tokens else "–",
            f"{item.dollars_per_million_tokens / cheapest:.3f}" if item.tokens and cheapest else "–",
            str(item.recoveries),
            format_bytes(item.moved_bytes.get("cloud", 0.0)),
        )
        for item in outcomes
    ]
    header = ("strategy", "useful tokens", "dollars", "$ / million", "ratio", "recoveries", "from cloud")
    yield table(header, rows, words=("strategy",))
    hours = [(item.strategy, *(f"{item.hours[cause]:.2f}" for cause in CAUSES)) for item in outcomes]
    yield "Hours by cause:\n\n" + table(("strategy", *CAUSES), hours, words=("strategy",))


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
