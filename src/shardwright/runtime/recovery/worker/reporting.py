"""What a machine records of its steps: rows of metrics, which its keeper writes, points for TensorBoard and Weights &
Biases, and what each rank prints, in `DIR/generation_3/RANK/stderr.log`.

The first rank of each machine tells rows and points, each machine into its own `--out`. In a generation that begins at
an earlier step than the last one reached, the later rows and points give way.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from shardwright.runtime.job.metrics import Row
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.trackers import about, keep_id, kept_id, new_id, tracked
from shardwright.runtime.recovery.wire import Message
from shardwright.runtime.recovery.worker.link import KeeperLink
from shardwright.runtime.step.engine import Engine

Tell = Callable[[Row], None]


@contextmanager
def reporting(link: KeeperLink, message: Message, engine: Engine, settings: Settings) -> Iterator[Tell | None]:
    """Give the function that records a row, None on a rank that records none. Every rank must call it."""
    first = not message["mates"]
    _agree_on_id(engine, settings, first=first)
    if not first:
        yield None
        return
    sends = message["rank"] == 0  # one rank to the service, the first of each machine into its folder
    tracking = replace(settings, wandb=settings.wandb if sends else "")
    with tracked(tracking, about(engine.layout.plan, settings)) as track:

        def tell(row: Row) -> None:
            link.tell("row", row=asdict(row))
            track(row)

        yield tell


def _agree_on_id(engine: Engine, settings: Settings, *, first: bool) -> None:
    """Have one name of the run at Weights & Biases on all machines, whichever sends: the one that a machine knows."""
    if not settings.wandb:
        return
    known = kept_id(settings.out)
    ids: list[Any] = [(known, new_id())]
    if engine.layout.world_size > 1:
        ids = [None] * engine.layout.world_size
        dist.all_gather_object(ids, (known, new_id()))
    agreed = next((kept for kept, _ in ids if kept), ids[0][1])
    if first and agreed != known:
        keep_id(settings.out, agreed)


STREAMS = {1: "stdout.log", 2: "stderr.log"}
_before: dict[int, int] = {}
_copying: list[subprocess.Popen[bytes]] = []


def keep_log(folder: Path, generation: int, rank: int) -> None:
    """Have all that this process prints from now on in the files of a rank, beside where it went before. The copy is
    made by processes that outlive this one, so that its last words are there too."""
    place = folder / f"generation_{generation}" / str(rank)
    place.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream, name in STREAMS.items():
        before = _before.setdefault(stream, os.dup(stream))
        copying = subprocess.Popen(
            ["tee", "-a", str(place / name)], stdin=subprocess.PIPE, stdout=before, start_new_session=True
        )
        assert copying.stdin is not None, "it is a pipe"
        os.dup2(copying.stdin.fileno(), stream)
        copying.stdin.close()
        _copying.append(copying)
    _copying[:] = [copying for copying in _copying if copying.poll() is None]
