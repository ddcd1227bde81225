"""The way of the passes through the units: the weights of a unit are gathered for it, its gradients are left behind it.

Only what `sharding.kept_apart` names is gathered. Holders do so together, each at the same unit of the same pass.
"""

from __future__ import annotations

import torch

from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.layout.process_groups import ProcessGroups
from shardwright.runtime.model.parallel import gather_into
from shardwright.runtime.state.store import Buffer, Store
from shardwright.runtime.step.sync import GradientSync


class Passage:
    """Is told by the passes which unit they reach; `release` when all passes of a step are over."""

    def __init__(self, layout: Layout, store: Store, groups: ProcessGroups, sync: GradientSync) -> None:
        self._sync = sync
        self._groups = {buffer: groups.find("gradient", buffer.bucket.ranks) for buffer in store.buffers}
        self._needed: dict[int, list[Buffer]] = {}
        for buffer in (buffer for buffer in store.buffers if buffer.weights.sharded):
            for unit in buffer.bucket.units:
                self._needed.setdefault(unit, []).append(buffer)
        if layout.plan.model.tied_embeddings and 0 in self._needed:
            self._needed.setdefault(layout.head, []).extend(self._needed[0])
        self._open: list[Buffer] = []

    def reached(self, unit: int) -> None:
        """Have the weights of a unit there, and those of no other."""
        needed = self._needed.get(unit, [])
        for buffer in self._open:
            if buffer not in needed:
                buffer.weights.close()
        for buffer in needed:
            if buffer not in self._open:
                buffer.weights.open()
                # `data` has no version: autograd need not know that weights it has saved are there again
                gather_into(buffer.weights.whole.data, buffer.weights.kept, group=self._groups[buffer])
        self._open = needed

    def leaves(self, unit: int, x: torch.Tensor) -> None:
        """Note the output of a unit: as soon as its gradient is there, the backward pass has reached the unit."""
        if x.requires_grad:
            x.register_hook(lambda _: self._back(unit))  # type: ignore[no-untyped-call]

    def release(self) -> None:
        """Free all that was gathered."""
        for buffer in self._open:
            buffer.weights.close()
        self._open = []

    def _back(self, unit: int) -> None:
        self._sync.reached(unit)
        self.reached(unit)
