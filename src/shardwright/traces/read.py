"""Files of a run, told apart by their content (traces, snapshots of memory, all else); and the folder that `train`
leaves, as figures of its ranks: medians over the steps, from `status.json`.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwright.errors import bad
from shardwright.progress import within
from shardwright.records import record
from shardwright.traces import kineto, nsight
from shardwright.traces.figures import Collective, RankFigures, figures
from shardwright.traces.kineto import GZIP
from shardwright.traces.memory import MemorySnapshot, read_snapshot
from shardwright.traces.nsight import MAGIC

HEAD = 65_536  # bytes that tell what a file is
PICKLE = b"\x80"
STATUS, METRICS, PLAN = "status.json", "metrics.csv", "plan.json"
ANEW = "train again with this version, which measures it"


@record
class Records:
    """What files hold: figures of ranks by trace, snapshots of memory, and the files that are neither."""

    ranks: tuple[RankFigures, ...] = ()
    snapshots: tuple[MemorySnapshot, ...] = ()
    others: tuple[Path, ...] = ()


def read_records(paths: Sequence[Path]) -> Records:
    """Return what the files hold; of traces of several ranks a file each. Raises SpecError for one that is missing,
    damaged or of a rank that another has."""
    ranks: list[RankFigures] = []
    snapshots: list[MemorySnapshot] = []
    others: list[Path] = []
    traces = 0
    for number, path in enumerate(paths):
        kind = kind_of_file(path)
        with within(number / len(paths), (number + 1) / len(paths)):
            if kind == "trace" or kind == "nsight":
                read = kineto.activities if kind == "trace" else nsight.activities
                ranks += [figures(activity) for activity in read(path, traces)]
                traces += 1
            elif kind == "snapshot":
                snapshots += read_snapshot(path)
            else:
                others.append(path)
    numbers = [rank.rank for rank in ranks]
    for rank in sorted(set(numbers)):
        if numbers.count(rank) > 1:
            files = [row.source for row in ranks if row.rank == rank]
            raise bad(" and ".join(files), f"are both of rank {rank}", "give each rank once")
    return Records(
        ranks=tuple(sorted(ranks, key=lambda row: row.rank)), snapshots=tuple(snapshots), others=tuple(others)
    )


def kind_of_file(path: Path) -> str:
    """Return trace, nsight, snapshot or other. Raises SpecError for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
        if head.startswith(GZIP):
            with gzip.open(path, "rb") as unpacked:
                head = unpacked.read(HEAD)
    except FileNotFoundError:
        raise bad(str(path), "no such file", "check the path") from None
    except IsADirectoryError:
        return "other"
    except (OSError, EOFError, zlib.error) as error:
        raise bad(str(path), f"cannot be read: {error}", "check the file; it may be cut off") from None
    if head.startswith(MAGIC):
        return "nsight"
    if head.startswith(PICKLE):
        return "snapshot"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in (b"{", b"[") and (b'"traceEvents"' in head or b'"ph"' in head):
        return "trace"
    return "other"


@record
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
    return RankFigures(
        rank=int(rank["rank"]),
        source=name,
        steps=steps,
        counted=True,
        step_seconds=step,
        compute_seconds=busy + update,
        optimizer_seconds=update,
        copy_seconds=0.0,
        data_seconds=data,
        idle_seconds=max(step - busy - waiting - data - sync - update, 0.0),
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
