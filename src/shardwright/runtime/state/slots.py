"""fp32 weights and moments of what a rank updates, on the device or in host memory, and the methods that update them:
AdamW, AdamW with moments in 8 bits, and SGD on flat parts of buffers.

AdamW and SGD are PyTorch's fused kernels, which read and write weights, gradients and moments once. All methods leave
all as it was where the device finds that the step is to be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import torch

from shardwright.records import record
from shardwright.runtime.state.blocks import BLOCK, Blocks, code_book, dequantised, quantised, zeros
from shardwright.runtime.state.buckets import Segment
from shardwright.runtime.state.pieces import WEIGHT
from shardwright.runtime.state.recipe import MOMENTS, Method, Recipe
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


CHUNK_ELEMENTS = 1 << 22  # whose 8-bit moments are in fp32 at a time


@record
class StepVerdict:
    """What becomes of a step's gradients, decided on the device: they are divided by `divisor`; where `left_out` is 1,
    not 0, nothing is updated. Both are single numbers in fp32."""

    divisor: torch.Tensor
    left_out: torch.Tensor

    def on(self, device: torch.device) -> StepVerdict:
        return StepVerdict(divisor=self.divisor.to(device), left_out=self.left_out.to(device))


@record
class Update:
    """Slots on one device that one method updates, with the same decay, their gradients there, and the step's figures:
    learning rate, and how many `updates` there were before."""

    slots: tuple[Slot, ...]
    gradients: tuple[torch.Tensor, ...]
    recipe: Recipe
    rate: float
    decay: float
    updates: int
    verdict: StepVerdict

    @property
    def masters(self) -> list[torch.Tensor]:
        return [slot.master for slot in self.slots]

    def moments(self, name: str) -> list[torch.Tensor]:
        return [cast("torch.Tensor", slot.moments[name]) for slot in self.slots]


def adamw(update: Update) -> None:
    """Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2)."""
    recipe, verdict, masters = update.recipe, update.verdict, update.masters
    count = torch.full((), update.updates + 1.0, dtype=torch.float32, device=masters[0].device)
    fused: Any = torch._fused_adamw_
    fused(
        masters, list(update.gradients), update.moments("first"), update.moments("second"), [], [count] * len(masters),
        lr=update.rate, beta1=recipe.betas[0], beta2=recipe.betas[1], weight_decay=update.decay, eps=recipe.epsilon,
        amsgrad=False, maximize=False, grad_scale=verdict.divisor, found_inf=verdict.left_out,
    )  # fmt: skip


def sgd(update: Update) -> None:
    verdict, masters = update.verdict, update.masters
    if update.decay:
        torch._foreach_mul_(masters, 1.0 - update.rate * update.decay * (1.0 - verdict.left_out))
    fused: Any = torch._fused_sgd_
    fused(
        masters, list(update.gradients), update.moments("first"), lr=update.rate, momentum=update.recipe.momentum,
        weight_decay=0.0, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        grad_scale=verdict.divisor, found_inf=verdict.left_out,
    )  # fmt: skip


def adamw_8bit(update: Update) -> None:
    """AdamW with moments in blocks of 8 bits (arXiv 2110.02861): as AdamW between dequantising and quantising them."""
    recipe, device = update.recipe, update.verdict.divisor.device
    beta1, beta2 = recipe.betas
    count = update.updates + 1
    root = (1.0 - beta2**count) ** 0.5
    figures = torch.tensor(
        [beta1, beta2, recipe.epsilon * root, update.rate * root / (1.0 - beta1**count), update.rate * update.decay]
    ).to(device, non_blocking=True)
    step = _fast_step() if device.type == "cuda" else _step
    books = (code_book(device, signed=True), code_book(device, signed=False))
    for slot, gradient in zip(update.slots, update.gradients, strict=True):
        first, second = cast("Blocks", slot.moments["first"]), cast("Blocks", slot.moments["second"])
        for start in range(0, first.elements, CHUNK_ELEMENTS):
            chunk = slice(start, min(start + CHUNK_ELEMENTS, first.elements))
            step(
                slot.master[chunk], gradient[chunk], first.part(chunk), second.part(chunk), books, figures,
                update.verdict.divisor, update.verdict.left_out,
            )  # fmt: skip


def _step(
    weights: torch.Tensor,
    gradient: torch.Tensor,
    first: tuple[torch.Tensor, torch.Tensor],
    second: tuple[torch.Tensor, torch.Tensor],
    books: tuple[torch.Tensor, torch.Tensor],
    figures: torch.Tensor,
    divisor: torch.Tensor,
    left_out: torch.Tensor,
) -> None:
    """Update weights [n] and the codes and scales of their moments, of whole blocks. `figures` are both betas, epsilon
    and the learning rate with Adam's corrections of bias in them, and the decay of the weights."""
    beta1, beta2, epsilon, rate, decay = figures.unbind()
    kept = left_out > 0.0
    past = (first[0].numel() - len(gradient)) % BLOCK
    pushed = torch.nn.functional.pad(torch.where(kept, 0.0, gradient / divisor), (0, past))
    old, square = dequantised(*first, books[0]), dequantised(*second, books[1])
    mean = torch.where(kept, old, old * beta1 + pushed * (1.0 - beta1))
    spread = torch.where(kept, square, square * beta2 + pushed.square() * (1.0 - beta2))
    taken = (mean * rate / (spread.sqrt() + epsilon))[: len(weights)]
    weights.copy_(torch.where(kept, weights, weights * (1.0 - decay) - taken))
    for (codes, scales), values, book in ((first, mean, books[0]), (second, spread, books[1])):
        new_codes, new_scales = quantised(values, book)
        codes.copy_(new_codes)
        scales.copy_(new_scales)


@cache
def _fast_step() -> Callable[..., None]:
    """Return `_step` in one kernel. Its values go through memory once, not once an operator."""
    return torch.compile(_step)


METHODS: Mapping[Method, Callable[[Update], None]] = {"adamw": adamw, "adamw8bit": adamw_8bit, "sgd": sgd}
