"""AdamW and SGD on flat buffers, with fp32 master weights; each holder of a bucket may update its own part alone.

All parts are updated by PyTorch's fused kernels, which read and write weights, gradients and moments once, and leave
all as it was where the device finds that the step is to be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shardwright.runtime.layout.process_groups import ProcessGroups
from shardwright.runtime.model.parallel import gather_into
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a step's gradients, decided on the device: they are divided by `divisor`; where `left_out` is 1,
    not 0, nothing is updated. Both are single numbers in fp32."""

    divisor: torch.Tensor
    left_out: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Parts of slots that one call updates: fp32 weights with the same decay on one device, gradients and moments."""

    decay: float
    weights: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    moments: dict[str, list[torch.Tensor]] = field(default_factory=dict)


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
    parts = []
    for buffer in store.buffers:
        start, stop = buffer.bucket.own(rank, sharded=True)
        for segment in buffer.bucket.segments:
            low, high = max(start, segment.start), min(stop, segment.stop)
            if segment.counted and low < high:
                parts.append(buffer.gradients.part(low, high))
    if not parts:
        return torch.zeros((), dtype=torch.float32, device=device)
    return torch.stack(torch._foreach_norm(parts)).square().sum()


def update(slots: Sequence[Slot], recipe: Recipe, step: int, verdict: Verdict, *, skipped: int = 0) -> None:
    """Update the master weights as the verdict on the gradients says, and the weights of the buffers from them: a few
    calls for all slots. `skipped` of the steps before this one had no update."""
    for host in (False, True):
        chosen = [slot for slot in slots if (slot.master.device != slot.gradient.device) == host]
        if not chosen:
            continue
        device = chosen[0].master.device
        gradients = [slot.gradient.to(device) for slot in chosen]
        there = Verdict(divisor=verdict.divisor.to(device), left_out=verdict.left_out.to(device))
        for decayed in (True, False):
            runs = _runs(chosen, gradients, recipe, decayed=decayed)
            if runs.weights:
                METHODS[recipe.method](runs, recipe, recipe.rate(step), step - skipped, there)
    own = [(slot.buffer.weights.part(slot.start, slot.stop), slot.master) for slot in slots]
    apart = [(part, master) for part, master in own if part.data_ptr() != master.data_ptr()]
    if apart:
        torch._foreach_copy_([part for part, _ in apart], [master for _, master in apart])


def _runs(slots: Sequence[Slot], gradients: Sequence[torch.Tensor], recipe: Recipe, *, decayed: bool) -> Runs:
    """Return the parts of slots that weight decay applies to, or the others."""
    found = Runs(decay=recipe.weight_decay if decayed else 0.0)
    for slot, gradient in zip(slots, gradients, strict=True):
        for segment in slot.buffer.bucket.segments:
            low, high = max(slot.start, segment.start) - slot.start, min(slot.stop, segment.stop) - slot.start
            if segment.decayed == decayed and low < high:
                found.weights.append(slot.master[low:high])
                found.gradients.append(gradient[low:high])
                for name, values in slot.moments.items():
                    found.moments.setdefault(name, []).append(values[low:high])
    return found


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


def verdict_on(norm: torch.Tensor, loss: torch.Tensor, clip: float, scale: float) -> Verdict:
    """Return what a loss and the norm of the gradients decide: these are divided so that their norm is at most `clip`
    (0: no limit) and by the `scale` of the loss; where one of them is not finite, nothing is updated."""
    over = ((norm + 1e-6) / clip).clamp(min=1.0) if clip else torch.ones_like(norm)
    finite = torch.isfinite(norm) & torch.isfinite(loss)
    return Verdict(divisor=over * scale, left_out=(~finite).to(torch.float32))


def _adamw(runs: Runs, recipe: Recipe, rate: float, updates: int, verdict: Verdict) -> None:
    """Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2), after so many `updates`."""
    count = torch.full((), updates + 1.0, dtype=torch.float32, device=runs.weights[0].device)
    fused: Any = torch._fused_adamw_
    fused(
        runs.weights, runs.gradients, runs.moments["first"], runs.moments["second"], [], [count] * len(runs.weights),
        lr=rate, beta1=recipe.betas[0], beta2=recipe.betas[1], weight_decay=runs.decay, eps=recipe.epsilon,
        amsgrad=False, maximize=False, grad_scale=verdict.divisor, found_inf=verdict.left_out,
    )  # fmt: skip


def _sgd(runs: Runs, recipe: Recipe, rate: float, updates: int, verdict: Verdict) -> None:
    if runs.decay:
        torch._foreach_mul_(runs.weights, 1.0 - rate * runs.decay * (1.0 - verdict.left_out))
    fused: Any = torch._fused_sgd_
    fused(
        runs.weights, runs.gradients, runs.moments["first"], lr=rate, momentum=recipe.momentum, weight_decay=0.0,
        dampening=0.0, nesterov=False, maximize=False, is_first_step=False, grad_scale=verdict.divisor,
        found_inf=verdict.left_out,
    )  # fmt: skip


METHODS: Mapping[str, Callable[[Runs, Recipe, float, int, Verdict], None]] = {"adamw": _adamw, "sgd": _sgd}
