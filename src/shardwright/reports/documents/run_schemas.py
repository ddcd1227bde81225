"""JSON schemas of what is said of runs (laid out, trained, measured, simulated, recovered), of programs and exports."""

from __future__ import annotations

from shardwright.plans.schema import Schema
from shardwright.reports.documents.shapes import (
    ANY,
    COUNT,
    FLAG,
    NUMBER,
    PERHAPS_NUMBER,
    TEXT,
    by_name,
    list_of,
    record,
)

PERHAPS_TEXT: Schema = {"type": ["string", "null"]}


def validation_schema() -> Schema:
    """Return the schema of `validate --json`."""
    predicted = record(
        {
            "row_id": TEXT,
            "predicted_seconds": NUMBER,
            "interval": {"type": "array", "prefixItems": [NUMBER, NUMBER], "minItems": 2, "maxItems": 2},
            "measured_seconds": PERHAPS_NUMBER,
            "error": PERHAPS_NUMBER,
            "predicted_memory_bytes": NUMBER,
            "measured_memory_bytes": PERHAPS_NUMBER,
            "fit_probability": NUMBER,
            "recompute": TEXT,
            "assumed": list_of(TEXT),
            "duplicate": FLAG,
            "failed": FLAG,
            "source": TEXT,
            "model": TEXT,
            "gpu": TEXT,
            "gpus": PERHAPS_NUMBER,
        }
    )
    summary = record(
        {
            "rows": COUNT,
            "predicted": COUNT,
            "timed": COUNT,
            "duplicates": COUNT,
            "skipped": by_name(COUNT),
            "overall": ANY,
            "macro": list_of(ANY),
            "by": by_name(list_of(ANY)),
            "memory": list_of(ANY),
            "fits": ANY,
            "worst": list_of(ANY),
        }
    )
    runs = {"anyOf": [predicted, record({"row_id": TEXT, "skipped": TEXT})]}
    return record({"runs": list_of(runs), "summary": summary})


def simulation_schema() -> Schema:
    """Return the schema of `simulate-spot --json`."""
    strategy = record(
        {
            "strategy": TEXT,
            "useful_tokens": NUMBER,
            "dollars": NUMBER,
            "dollars_per_million_tokens": PERHAPS_NUMBER,
            "hours": by_name(NUMBER),
            "losses": COUNT,
            "recoveries": COUNT,
            "moved_bytes": by_name(NUMBER),
        }
    )
    trace = record({"name": TEXT, "hours": NUMBER, "places": list_of(list_of(TEXT))})
    return record({"trace": trace, "strategies": list_of(strategy)})


def recovery_schema() -> Schema:
    """Return the schema of `recover --dry-run --json`."""
    return record(
        {
            "generation": COUNT,
            "step": COUNT,
            "machines": list_of(TEXT),
            "ranks": COUNT,
            "bytes": by_name(NUMBER),
            "seconds": NUMBER,
            "bound_seconds": NUMBER,
            "decision": TEXT,
        }
    )


def program_schema() -> Schema:
    """Return the schema of `spmd plan --json` and `spmd show --json`."""
    return record(
        {
            "ranks": COUNT,
            "seconds": NUMBER,
            "bound_seconds": NUMBER,
            "operators": COUNT,
            "communications": COUNT,
            "shares": by_name(list_of(NUMBER)),
            "notes": {"type": "object"},
        }
    )


def training_schema() -> Schema:
    """Return the schema of `train --json`, which a run also leaves as status.json. What was measured is there where a
    step was."""
    rank = record(
        {
            "rank": COUNT,
            "stage": ANY,
            "busy_seconds": NUMBER,
            "predicted_busy_seconds": PERHAPS_NUMBER,
            "waiting_seconds": NUMBER,
            "bubble": PERHAPS_NUMBER,
            "predicted_bubble": PERHAPS_NUMBER,
            "peak_memory_bytes": PERHAPS_NUMBER,
            "predicted_memory_bytes": PERHAPS_NUMBER,
        }
    )
    measured = {
        "iteration_seconds": NUMBER,
        "predicted_iteration_seconds": PERHAPS_NUMBER,
        "tokens_per_second": NUMBER,
        "ranks": list_of(rank),
        "held_out": record({"step": COUNT, "loss": NUMBER}),
    }
    ended = {"state": {"enum": ["finished", "stopped"]}, "step": COUNT}
    return record({**ended, "checkpoint": PERHAPS_TEXT, "unsaved": list_of(TEXT)}, measured)


def losses_schema() -> Schema:
    """Return the schema of `spmd train --json`."""
    return record(
        {"losses": list_of(NUMBER), "ranks": list_of(record({"parameter_bytes": COUNT, "peak_bytes": COUNT}))}
    )


def layout_schema() -> Schema:
    """Return the schema of `train --dry-run --json`: what each rank would hold and compute."""
    counts = ("rank", "replica", "copy", "stage", "context_rank", "tensor_rank", "micro_batches", "first_sample")
    rank = record(
        {
            **dict.fromkeys(counts, COUNT),
            "gpu": TEXT,
            "layers": list_of(list_of(COUNT)),
            "embedding": FLAG,
            "head": FLAG,
            "before": list_of(COUNT),
            "after": list_of(COUNT),
            "predicted_memory_bytes": PERHAPS_NUMBER,
            "gradient_groups": list_of(record({"units": list_of(COUNT), "experts": ANY, "ranks": list_of(COUNT)})),
        }
    )
    group = record({"purpose": TEXT, "ranks": list_of(COUNT)})
    return record({"world_size": COUNT, "ranks": list_of(rank), "groups": list_of(group)})


def measurement_schema() -> Schema:
    """Return the schema of `profile --json`."""
    figures = {"gpu": TEXT, "device": TEXT, "count": COUNT, "memory_bytes": NUMBER}
    parts = {"operators": list_of(ANY), "links": list_of(ANY), "cluster": {"type": "object"}}
    return record({"profile": TEXT, **figures, **parts})


def export_schema() -> Schema:
    """Return the schema of `export --json`; beside these keys it has what the target takes."""
    return record({"target": TEXT, "version": TEXT})
