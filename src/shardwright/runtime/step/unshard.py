"""The way of the passes through the units: the weights of a unit are gathered for it, its gradients are left behind it.

Only what `sharding.kept_apart` names is gathered. Holders do so together, each at the same unit of the same pass, or
ahead of it where all know which unit is next (`fetch`).
"""

from __future__ import annotations

import torch

from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.layout.process_groups import ProcessGroups
from shardwright.runtime.state.store import Buffer, Store
from shardwright.runtime.step.parts import Gather, start_gather
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
        self._coming: dict[Buffer, Gather] = {}

    def fetch(self, unit: int) -> None:
        """Begin to gather the weights of the unit that is next, beside what computes."""
        for buffer in self._needed.get(unit, []):
            if buffer not in self._open and buffer not in self._coming:
                self._coming[buffer] = self._gather(buffer)

    def _gather(self, buffer: Buffer) -> Gather:
        buffer.weights.open()
        # `data` has no version: autograd need not know that weights it has saved are there again
        return start_gather(buffer.bucket, buffer.weights.whole.data, buffer.weights.kept, self._groups[buffer])

    def reached(self, unit: int) -> None:
        """Have the weights of a unit there, and those of no other."""
        needed = self._needed.get(unit, [])
        for buffer in self._open:
            if buffer not in needed:
                buffer.weights.close()
        for buffer in needed:
            if buffer not in self._open:
                coming = self._coming.pop(buffer, None)
                (coming or self._gather(buffer)).wait()
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
