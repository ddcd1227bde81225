"""The folder that `train` leaves, as figures of its ranks: medians over the steps, from `status.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.errors import bad
from shardwright.traces.figures import Collective, RankFigures

STATUS, METRICS, PLAN = "status.json", "metrics.csv", "plan.json"
ANEW = "train again with this version, which measures it"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFolder:
    """What `train` measured: figures of each rank, and the mean seconds of a step in which it stood still to save."""

    ranks: tuple[RankFigures, ...]
    saving_seconds: float


def read_train_folder(folder: Path) -> TrainFolder:
    """Return what a run of `train` measured. Raises SpecError for a folder that is none, or of a version that measured
    less."""
    name = str(folder / STATUS)
    try:
        status = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise bad(name, "cannot be read", "name the folder that `train` wrote (its `out=`)") from None
    if not isinstance(status, dict) or not isinstance(status.get("ranks"), list):
        raise bad(name, "has no measured steps", "name a run that trained at least one step")
    try:
        step = float(status["iteration_seconds"])
        ranks = tuple(_figures(rank, step, int(status["step"]), name) for rank in status["ranks"])
        return TrainFolder(ranks=ranks, saving_seconds=float(status["saving_seconds"]))
    except (KeyError, TypeError, ValueError) as error:
        raise bad(name, f"lacks {error!s:.40}", ANEW) from None


def _figures(rank: Mapping[str, Any], step: float, steps: int, name: str) -> RankFigures:
    busy, waiting, data = (float(rank[f"{part}_seconds"]) for part in ("busy", "waiting", "data"))
    sync, update = float(rank["sync_seconds"]), float(rank["update_seconds"])
    calls = [("send_recv", "pipeline", waiting), ("all_reduce", "gradients", sync)]
    idle = max(step - busy - waiting - data - sync - update, 0.0)
    return RankFigures(
        rank=int(rank["rank"]),
        source=name,
        steps=steps,
        counted=True,
        step_seconds=step,
        compute_seconds=busy + update,
        optimizer_seconds=update,
        gemm_seconds=0.0,
        attention_seconds=0.0,
        copy_seconds=0.0,
        data_seconds=data,
        idle_seconds=idle,
        allocation_seconds=0.0,
        allocations=0.0,
        launches=0.0,
        collectives=tuple(
            Collective(
                kind=kind, group=group, ranks=0, calls=0.0, seconds=value, hidden_seconds=0.0, exposed_seconds=value
            )
            for kind, group, value in calls
        ),
        irregularity=float(rank["irregularity"]),
        on_gpu=False,
    )
