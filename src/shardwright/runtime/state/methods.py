"""How weights are updated: AdamW, AdamW with moments in 8 bits, and SGD on flat parts of buffers.

AdamW and SGD are PyTorch's fused kernels, which read and write weights, gradients and moments once. All methods leave
all as it was where the device finds that the step is to be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import torch

from shardwright.records import record
from shardwright.runtime.state.blocks import BLOCK, Blocks, code_book, dequantised, quantised
from shardwright.runtime.state.recipe import Method, Recipe
from shardwright.runtime.state.slots import Slot

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
