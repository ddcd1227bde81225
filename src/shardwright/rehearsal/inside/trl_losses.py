"""Losses of TRL 1.16 in a rehearsal: its own output head, which makes the logits in tiles, and what its trainers run
with it for a micro-batch (`_compute_loss` of trl/trainer/{dpo,kto}_trainer.py).

A fake tensor has no values, by which TRL picks the positions that count; here all do, as where a sample is full of
answers. Where they are picked or not, a copy of the hidden states is made and kept.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from shardwright.rehearsal.inside.guard import require

TILES = "tiles of logits"
WHY_TILES = "kernels of Triton, which work in place (trl/kernels/chunked_logprob.py: _forward_kernel, _backward_kernel)"
OF_POLICY = {"dpo": ("log_probs", "entropy", "mean_logits", "is_top1"), "kto": ("log_probs",)}
BETA = 0.1
Tokens = Callable[[], torch.Tensor]


def add_head(model: Any, loss: str | None, shims: dict[str, str]) -> None:
    """Have a model give log-probabilities by TRL's head: with what the trainer of a loss asks for, or that of SFT."""
    require("trl", "pip install trl")
    with _disable_current_modes():
        tools: Any = importlib.import_module("trl.trainer.utils")
        kernels: Any = importlib.import_module("trl.kernels.chunked_logprob")
    kernels._use_triton = tools._use_triton = lambda _: False
    kernels._forward_tile = kernels._backward_tile = lambda *_, **__: None
    tools.add_fused_lm_head(model, outputs=OF_POLICY.get(loss or "", ("log_probs",)))
    shims[TILES] = WHY_TILES


def loss_of(loss: str | None, model: Any, reference: Any, tokens: Tokens) -> torch.Tensor:
    """Return the loss of a micro-batch. `reference` gives log-probabilities against which it is held; None for those
    that are known before."""
    if loss is None:
        return _run(model, tokens()).loss
    mismatched = _without_gradients(model, tokens()) if loss == "kto" else torch.zeros(1, device="cuda")
    batch = tokens()
    ratio = _run(model, batch).log_probs.sum(1)
    if reference is not None:
        ratio = ratio - _without_gradients(reference, batch)
    if loss == "kto":
        if reference is not None:
            mismatched = mismatched - _without_gradients(reference, tokens())
        kl = mismatched.mean().clamp(min=0)
        return (1.0 - torch.sigmoid(BETA * (ratio - kl))).mean()
    chosen, rejected = ratio.chunk(2)
    return -torch.nn.functional.logsigmoid(BETA * (chosen - rejected)).mean()


def _run(model: Any, batch: torch.Tensor) -> Any:
    return model(input_ids=batch, labels=batch, fused_lm_head=True, use_cache=False)


def _without_gradients(model: Any, batch: torch.Tensor) -> Any:
    with torch.no_grad():
        return _run(model, batch).log_probs.sum(1)
