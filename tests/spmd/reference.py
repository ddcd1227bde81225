"""The reference for everything: the untouched module, run by PyTorch alone, with only its dropout masks replaced."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from tests.spmd.models import Batch, Loss
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shardwright.spmd.kernels import Draw, dropout


class Masked(TorchFunctionMode):
    """Draws every dropout by position, in the order of the calls."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.numbers = seed, itertools.count()

    def _drop(self, x: Tensor, chance: float) -> Tensor:
        mask = dropout(torch.ones_like(x), chance, Draw(number=next(self.numbers), seed=self.seed))
        return x * mask

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is nn.functional.dropout:
            x, chance, training, *_ = (*args, *[kwargs.get(name) for name in ("p", "training")][len(args) - 1 :])
            return self._drop(x, chance) if training and chance else x
        if function is nn.functional.scaled_dot_product_attention and kwargs.get("dropout_p", 0.0):
            return self._attention(*args, **kwargs)
        return function(*args, **kwargs)

    def _attention(
        self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, **_: Any,
    ) -> Tensor:  # fmt: skip
        scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
        if is_causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        if attn_mask is not None:
            added = (
                torch.zeros_like(scores).masked_fill(~attn_mask, -torch.inf)
                if attn_mask.dtype == torch.bool
                else attn_mask
            )
            scores = scores + added
        return self._drop(scores.softmax(-1), dropout_p) @ v


def reference(module: nn.Module, batch: Batch, loss: Loss, seed: int = 0) -> dict[str, Tensor]:
    """Return loss, gradients and new buffers of one step, by the names that a program leaves them under."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.zero_grad()
    with Masked(seed):
        value = loss(module, batch)
    value.backward()
    found = {"loss": value.detach()}
    found |= {f"gradient {name}": p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    found |= {f"buffer {name}": buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
    return found
