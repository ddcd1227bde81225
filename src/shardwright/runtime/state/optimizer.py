"""AdamW and SGD on flat buffers, with fp32 master weights; each holder of a bucket may update its own part alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shardwright.runtime.layout.process_groups import ProcessGroups
from shardwright.runtime.model.parallel import gather_into
from shardwright.runtime.state.buckets import Bucket
from shardwright.runtime.state.offload import in_host
from shardwright.runtime.state.recipe import Recipe
from shardwright.runtime.state.store import Buffer, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The optimizer's part of a buffer: elements [start, stop) of the bucket, their fp32 weights and moments. It is
    updated where these are: on the device, or in host memory.

    For fp32 weights on the device `master` is a part of the buffer itself."""

    buffer: Buffer
    start: int
    stop: int
    master: torch.Tensor
    moments: dict[str, torch.Tensor]

    @property
    def gradient(self) -> torch.Tensor:
        return self.buffer.gradients.part(self.start, self.stop)


def make_slots(store: Store, rank: int, recipe: Recipe, *, sharded: bool, offload: float) -> tuple[Slot, ...]:
    """Return the optimizer state of a rank, from the weights in its buffers. That of whole buckets, together at least
    the part `offload` of all elements, is in host memory."""
    slots = []
    owned = [buffer.bucket.own(rank, sharded=sharded) for buffer in store.buffers]
    host = in_host([stop - start for start, stop in owned], offload)
    for number, (buffer, (start, stop)) in enumerate(zip(store.buffers, owned, strict=True)):
        master = buffer.weights.part(start, stop).float()
        if number in host:
            master = master.to("cpu", copy=True)
        moments = {name: torch.zeros_like(master) for name in recipe.moments}
        slots.append(Slot(buffer=buffer, start=start, stop=stop, master=master, moments=moments))
    return tuple(slots)


def own_square(store: Store, rank: int, device: torch.device) -> torch.Tensor:
    """Return the sum of squares of this rank's share of the summed gradients; over all ranks it gives the square of the
    global norm, each weight of the model counted once."""
    total = torch.zeros((), dtype=torch.float32, device=device)
    for buffer in store.buffers:
        start, stop = buffer.bucket.own(rank, sharded=True)
        for segment in buffer.bucket.segments:
            low, high = max(start, segment.start), min(stop, segment.stop)
            if segment.counted and low < high:
                total += buffer.gradients.part(low, high).square().sum()
    return total


def update(slots: Sequence[Slot], recipe: Recipe, step: int, scale: float, *, skipped: int = 0) -> None:
    """Update the master weights with gradients times `scale`, and the weights of the buffers from them. `skipped` of
    the steps before this one had no update."""
    rate = recipe.rate(step)
    for slot in slots:
        if scale != 1.0:
            slot.gradient.mul_(scale)
        gradient = slot.gradient.to(slot.master.device)
        _decay(slot, rate * recipe.weight_decay)
        (_adamw if recipe.method == "adamw" else _sgd)(slot, gradient, recipe, rate, step - skipped)
        own = slot.buffer.weights.part(slot.start, slot.stop)
        if own.data_ptr() != slot.master.data_ptr():
            own.copy_(slot.master)


def gather_weights(store: Store, rank: int, groups: ProcessGroups) -> None:
    """Collect from all holders the parts of each bucket that they updated, where these hold all of it."""
    work = []
    for buffer in store.buffers:
        group = groups.find("gradient", buffer.bucket.ranks)
        if group is not None and not buffer.weights.sharded:
            part = buffer.weights.part(*buffer.bucket.own(rank, sharded=True)).clone()
            work.append((gather_into(buffer.weights.whole, part, group=group, async_op=True), part))
    for item, _ in work:
        item.wait()


def clip_scale(norm: float, clip: float) -> float:
    """Return by what gradients are multiplied so that their norm is at most `clip` (0: no limit)."""
    return min(1.0, clip / (norm + 1e-6)) if clip else 1.0


def _decay(slot: Slot, amount: float) -> None:
    for start, stop in decayed(slot.buffer.bucket, slot.start, slot.stop):
        slot.master[start - slot.start : stop - slot.start].mul_(1.0 - amount)


def decayed(bucket: Bucket, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the ranges within [start, stop) of a bucket that weight decay applies to."""
    ranges = [(max(start, s.start), min(stop, s.stop)) for s in bucket.segments if s.decayed]
    return [(low, high) for low, high in ranges if low < high]


def _adamw(slot: Slot, gradient: torch.Tensor, recipe: Recipe, rate: float, updates: int) -> None:
    """Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2), after so many `updates`."""
    first, second = slot.moments["first"], slot.moments["second"]
    beta1, beta2 = recipe.betas
    first.lerp_(gradient, 1.0 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
    spread = (second / (1.0 - beta2 ** (updates + 1))).sqrt_().add_(recipe.epsilon)
    slot.master.addcdiv_(first, spread, value=-rate / (1.0 - beta1 ** (updates + 1)))


def _sgd(slot: Slot, gradient: torch.Tensor, recipe: Recipe, rate: float, updates: int) -> None:
    first = slot.moments["first"]
    first.mul_(recipe.momentum).add_(gradient)
    slot.master.add_(first, alpha=-rate)
