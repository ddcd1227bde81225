"""The optimizer state of a rank: fp32 weights and moments of the parts of buffers that it updates."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shardwright.records import record
from shardwright.runtime.state.blocks import Blocks, zeros
from shardwright.runtime.state.buckets import Segment
from shardwright.runtime.state.pieces import WEIGHT
from shardwright.runtime.state.recipe import MOMENTS, Recipe
from shardwright.runtime.state.store import Buffer, Store


@record(eq=False)
class Slot:
    """The optimizer's part of a segment of a buffer: elements [start, stop) of the bucket, their fp32 weights and
    moments. It is updated where these are: on the device, or in host memory.

    For fp32 weights on the device `master` is a part of the buffer itself."""

    buffer: Buffer
    segment: Segment
    start: int
    stop: int
    master: torch.Tensor
    moments: dict[str, torch.Tensor | Blocks]

    @property
    def gradient(self) -> torch.Tensor:
        return self.buffer.gradients.part(self.start, self.stop)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of state: the weights and the names of the moments."""
        return (WEIGHT, *self.moments)

    def read(self, kind: str, start: int, stop: int) -> torch.Tensor:
        """Return elements [start, stop) of the bucket, which must be in the slot, of one kind of state in fp32."""
        kept = self.master if kind == WEIGHT else self.moments[kind]
        low, high = start - self.start, stop - self.start
        return kept.values(low, high) if isinstance(kept, Blocks) else kept[low:high]

    def write(self, kind: str, start: int, values: torch.Tensor) -> None:
        """Set the elements of one kind of state from element `start` of the bucket on."""
        kept = self.master if kind == WEIGHT else self.moments[kind]
        low = start - self.start
        if isinstance(kept, Blocks):
            kept.put(low, values)
        else:
            kept[low : low + values.numel()].copy_(values)


def make_slots(store: Store, rank: int, recipe: Recipe, *, sharded: bool, offload: float) -> tuple[Slot, ...]:
    """Return the optimizer state of a rank, from the weights in its buffers. That of whole buckets, together at least
    the part `offload` of all elements, is in host memory."""
    slots = []
    owned = [buffer.bucket.own(rank, sharded=sharded) for buffer in store.buffers]
    host = in_host([stop - start for start, stop in owned], offload)
    for number, (buffer, (start, stop)) in enumerate(zip(store.buffers, owned, strict=True)):
        for segment in buffer.bucket.segments:
            low, high = max(start, segment.start), min(stop, segment.stop)
            if low < high:
                slots.append(_slot(buffer, segment, low, high, recipe, host=number in host))
    return tuple(slots)


def _slot(buffer: Buffer, segment: Segment, start: int, stop: int, recipe: Recipe, *, host: bool) -> Slot:
    master = buffer.weights.part(start, stop).float()
    if host:
        master = master.to("cpu", copy=True)
    rule = recipe.rule(segment)
    moments: dict[str, torch.Tensor | Blocks] = {
        name: zeros(stop - start, master.device, signed=name == "first")
        if rule == "adamw8bit"
        else torch.zeros_like(master)
        for name in MOMENTS[rule]
    }
    return Slot(buffer=buffer, segment=segment, start=start, stop=stop, master=master, moments=moments)


def in_host(elements: Sequence[int], share: float) -> frozenset[int]:
    """Return which of the buckets, each of so many `elements`, hold at least a `share` of all elements between them:
    the largest, and last the smallest that is enough. None of them could be left out."""
    left = share * sum(elements)
    ordered = sorted(range(len(elements)), key=lambda index: (-elements[index], index))
    chosen: set[int] = set()
    for place, index in enumerate(ordered):
        if left <= 0:
            break
        enough = [other for other in ordered[place:] if elements[other] >= left]
        taken = enough[-1] if enough else index
        chosen.add(taken)
        left -= elements[taken]
    return frozenset(chosen)
