"""The process groups of a layout, made once by all ranks in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from shardwright.runtime.layout.groups import Communicator, Layout, Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroups:
    """The groups of one rank. Groups of a single rank do not exist: `find` returns None for them."""

    groups: Mapping[Communicator, Any]

    def find(self, purpose: Purpose, ranks: tuple[int, ...]) -> Any:
        """Return the group of `ranks` for a purpose."""
        return self.groups[Communicator(purpose=purpose, ranks=ranks)] if len(ranks) > 1 else None


def make_process_groups(layout: Layout, rank: int, **options: Any) -> ProcessGroups:
    """Make all groups of the layout; `options` go to `torch.distributed.new_group`. Every rank must call it."""
    groups = {}
    for communicator in layout.communicators():
        group = dist.new_group(list(communicator.ranks), **options)
        if rank in communicator.ranks:
            groups[communicator] = group
    return ProcessGroups(groups=groups)
