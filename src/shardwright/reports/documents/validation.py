"""A validation as a JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from shardwright.reports.documents.ranking import VERSION
from shardwright.validation.outcome import Outcome
from shardwright.validation.validate import Validation

Document = Mapping[str, object]


def validation_document(validation: Validation) -> Document:
    """Return what `validate --json` prints."""
    summary = validation.summary
    return {
        "version": VERSION,
        "runs": [_run(outcome) for outcome in validation.outcomes],
        "summary": asdict(summary)
        | {"skipped": [asdict(reason) | {"count": count} for reason, count in summary.skipped]},
    }


def _run(outcome: Outcome) -> Document:
    predicted, run = outcome.predicted, outcome.run
    if predicted is None:
        return {"row_id": run.row_id, "skipped": None if outcome.skipped is None else asdict(outcome.skipped)}
    return {
        "row_id": run.row_id,
        "predicted_seconds": predicted.seconds,
        "interval": [predicted.low_seconds, predicted.high_seconds],
        "measured_seconds": outcome.measured_seconds,
        "error": outcome.error,
        "predicted_memory_bytes": predicted.memory_bytes,
        "measured_memory_bytes": outcome.measured_bytes,
        "fit_probability": predicted.fit_probability,
        "recompute": predicted.recompute,
        "assumed": [str(assumed) for assumed in outcome.assumed],
        "duplicate": not outcome.counted,
        "failed": outcome.failed,
        "source": run.source,
        "model": run.model,
        "gpu": run.gpu,
        "gpus": run.n_gpus,
    }
