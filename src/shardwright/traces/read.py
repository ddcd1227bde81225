"""Files of a run, told apart by their content: traces, snapshots of memory, and all else."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.errors import bad
from shardwright.progress import within
from shardwright.traces import kineto, nsight
from shardwright.traces.chrome import GZIP
from shardwright.traces.figures import RankFigures, figures
from shardwright.traces.nsight import MAGIC
from shardwright.traces.snapshot import MemorySnapshot, read_snapshot

HEAD = 65_536  # bytes that tell what a file is
PICKLE = b"\x80"


@dataclass(frozen=True, slots=True, kw_only=True)
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
