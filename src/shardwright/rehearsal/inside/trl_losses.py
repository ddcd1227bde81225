"""Losses of TRL 1.16 in a rehearsal: its own output head, which makes the logits in tiles, and what its trainers run
with it for a micro-batch (`_compute_loss` of trl/trainer/{dpo,kto}_trainer.py); of ORPO and CPO, which have whole
logits, the trainers' own `get_batch_loss_metrics` (trl/experimental/{orpo,cpo}), and of rewards its own `compute_loss`.

A fake tensor has no values, by which TRL picks the positions that count; here all do, as where a sample is full of
answers. Where they are picked or not, a copy of the hidden states is made and kept.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import _disable_current_modes

from shardwright.rehearsal.inside.guard import require

TILES = "tiles of logits"
WHY_TILES = "kernels of Triton, which work in place (trl/kernels/chunked_logprob.py: _forward_kernel, _backward_kernel)"
OF_POLICY = {"dpo": ("log_probs", "entropy", "mean_logits", "is_top1"), "kto": ("log_probs",)}
KERNEL = "log-probabilities of whole logits"
WHY_KERNEL = "kernels of Triton, which read logits and write their gradient (trl/kernels/logprob_entropy.py)"
BETA = 0.1
SETTINGS = {  # of a trainer of whole logits, as its configuration has them by default
    "is_encoder_decoder": False, "aux_loss_enabled": False, "padding_value": 0, "pad_token_id": 0, "beta": BETA,
    "alpha": 0.0, "cpo_alpha": 1.0, "label_smoothing": 0.0, "loss_type": "sigmoid",
}  # fmt: skip
Tokens = Callable[[], torch.Tensor]
REWARD = "reward"


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


class _Absent(types.ModuleType):
    """A module of which an import needs decorators and names alone."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: arguments[0]


class _Kernel:
    """A kernel that allocates nothing, whatever its grid is."""

    def __getitem__(self, _: object) -> Callable[..., None]:
        return lambda *_, **__: None


def add_kernel(shims: dict[str, str]) -> None:
    """Have log-probabilities of whole logits come from the kernel that TRL has on GPUs."""
    require("trl", "pip install trl")
    absent = {name: _Absent(name) for name in ("triton", "triton.language")}
    vars(absent["triton"])["language"] = absent["triton.language"]
    with _disable_current_modes():
        tools: Any = importlib.import_module("trl.trainer.utils")
        with patch.dict(sys.modules, {} if importlib.util.find_spec("triton") else absent):
            kernels: Any = importlib.import_module("trl.kernels.logprob_entropy")
    kernels._forward_kernel = kernels._backward_kernel = _Kernel()
    tools.is_triton_available = lambda: True
    tools._fused_logprob_entropy = kernels.selective_log_softmax_and_entropy
    shims[KERNEL] = WHY_KERNEL


def whole_loss_of(loss: str, model: Any, tokens: Tokens) -> torch.Tensor:
    """Return the loss of a micro-batch, as the trainer of a loss with whole logits computes it, or of rewards."""
    if loss == REWARD:
        return reward_loss_of(model, tokens)
    with _disable_current_modes():
        module = importlib.import_module(f"trl.experimental.{loss}.{loss}_trainer")
    kind = getattr(module, f"{loss.upper()}Trainer")
    trainer = kind.__new__(kind)
    accelerator = types.SimpleNamespace(device=torch.device("cuda"), gather_for_metrics=lambda values: values)
    vars(trainer).update(SETTINGS, accelerator=accelerator)
    batch: dict[str, torch.Tensor] = {}
    for side, rows in zip(("chosen", "rejected"), tokens().chunk(2), strict=True):
        batch |= {f"{side}_input_ids": rows, f"{side}_labels": rows, f"{side}_attention_mask": torch.ones_like(rows)}
    computed: tuple[torch.Tensor, Any] = trainer.get_batch_loss_metrics(model, batch)
    return computed[0]


class _Metric:
    """A metric whose value nobody asks for."""

    def __getattr__(self, _: str) -> Any:
        return lambda: self

    def item(self) -> int:
        return 0


def reward_loss_of(model: Any, tokens: Tokens) -> torch.Tensor:
    """Return the loss of a micro-batch of pairs, as the trainer of rewards computes it."""
    with _disable_current_modes():
        module = importlib.import_module("trl.trainer.reward_trainer")
    trainer = module.RewardTrainer.__new__(module.RewardTrainer)
    metric = _Metric()
    settings: Any = types.SimpleNamespace
    vars(trainer).update(
        model=model, _tp_size=1, _total_train_tokens=0, _metrics={"train": defaultdict(list)},
        args=settings(center_rewards_coefficient=None),
        accelerator=settings(gather=lambda _: metric, gather_for_metrics=lambda _: metric),
    )  # fmt: skip
    batch = tokens()
    inputs = {"input_ids": batch, "attention_mask": torch.ones_like(batch)}
    loss: torch.Tensor = trainer.compute_loss(model, inputs)
    return loss


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
