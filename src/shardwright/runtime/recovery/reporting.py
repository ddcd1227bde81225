"""What a machine records of its steps: rows of metrics, by its keeper, and points for TensorBoard and Weights & Biases.

The first rank of each machine tells them, each machine into its own `--out`. In a generation that begins at an earlier
step than the last one reached, the later rows and points give way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch.distributed as dist

from shardwright.runtime.job.metrics import Row
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.trackers import about, keep_id, kept_id, new_id, tracked
from shardwright.runtime.recovery.channel import Message
from shardwright.runtime.recovery.link import KeeperLink
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
    told = replace(settings, wandb=settings.wandb if sends else "")
    with tracked(told, about(engine.layout.plan, settings)) as track:

        def tell(row: Row) -> None:
            link.tell("row", row=asdict(row))
            track(row)

        yield tell


def _agree_on_id(engine: Engine, settings: Settings, *, first: bool) -> None:
    """Have one name of the run at Weights & Biases on all machines, whichever sends: the one that a machine knows."""
    if not settings.wandb:
        return
    known = kept_id(settings.out)
    found: list[Any] = [(known, new_id())]
    if engine.layout.world_size > 1:
        found = [None] * engine.layout.world_size
        dist.all_gather_object(found, (known, new_id()))
    agreed = next((kept for kept, _ in found if kept), found[0][1])
    if first and agreed != known:
        keep_id(settings.out, agreed)
