"""The process groups of a layout, made once by all ranks in the same order."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from shardwright.records import record
from shardwright.runtime.layout.groups import Communicator, Layout, Purpose

MEETING_LIMIT = datetime.timedelta(days=1)


@record
class ProcessGroups:
    """The groups of one rank. Groups of a single rank do not exist: `find` returns None for them. At `meeting`, a group
    of all over gloo, ranks wait for what may take long; None: the default group."""

    groups: Mapping[Communicator, Any]
    meeting: Any = None

    def find(self, purpose: Purpose, ranks: tuple[int, ...]) -> Any:
        return self.groups[Communicator(purpose=purpose, ranks=ranks)] if len(ranks) > 1 else None


def make_process_groups(layout: Layout, rank: int, **options: Any) -> ProcessGroups:
    """Make all groups of the layout; `options` go to `torch.distributed.new_group`. Every rank must call it."""
    groups = {}
    for communicator in layout.communicators():
        group = dist.new_group(list(communicator.ranks), **options)
        if rank in communicator.ranks:
            groups[communicator] = group
    return ProcessGroups(groups=groups)


def with_meeting(groups: ProcessGroups) -> ProcessGroups:
    """Return groups with one for meetings. Who writes a large checkpoint to a slow disk is not lost: the time limit of
    a step's messages is not that of a meeting, and NCCL, which would end the process, has no part in it. Every rank
    must call it."""
    if dist.get_world_size() == 1:
        return groups
    return replace(groups, meeting=dist.new_group(backend="gloo", timeout=MEETING_LIMIT))
