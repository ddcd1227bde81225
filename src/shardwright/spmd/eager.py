"""The step of a module as PyTorch runs it eagerly, with dropout drawn by position: what every program must equal."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shardwright.spmd.kernels import Draw, dropout
from shardwright.spmd.trace import Loss


class Masked(TorchFunctionMode):
    """Draws every dropout by position, in the order of the calls, as a program does in the step of this `seed`."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.numbers = seed, itertools.count()

    def _drop(self, x: Tensor, chance: float) -> Tensor:
        mask = dropout(torch.ones_like(x), chance, Draw(number=next(self.numbers), seed=self.seed))
        return x * mask

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is nn.functional.dropout:
            return self._dropout(*args, **kwargs)
        if function is nn.functional.scaled_dot_product_attention and kwargs.get("dropout_p", 0.0):
            return self._attention(*args, **kwargs)
        return function(*args, **kwargs)

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return self._drop(input, p) if training and p else input

    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> Tensor:
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


def eager(module: nn.Module, batch: Mapping[str, Tensor], loss: Loss, seed: int = 0) -> dict[str, Tensor]:
    """Return loss, gradients and new buffers of one step, by the names that a program leaves them under: "loss",
    "gradient NAME", "buffer NAME". The module is left as it was, but for its gradients."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.zero_grad()
    with Masked(seed):
        value = loss(module, batch)
    value.backward()
    left = {"loss": value.detach()}
    left |= {f"gradient {name}": p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    left |= {f"buffer {name}": buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
    return left
