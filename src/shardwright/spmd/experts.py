"""Experts of `transformers`, traced row by row.

Its own implementation sorts the tokens by expert, so that a row's place depends on all rows. `grouped_mm` takes rows in
any order, so a shard of the rows is computed like the whole.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from shardwright.spmd.operators import grouped_mm

_NAME = "shardwright"


@contextmanager
def experts_by_row(module: nn.Module) -> Iterator[None]:
    """Let the experts inside `module` that come from `transformers` run row by row."""
    moe = sys.modules.get("transformers.integrations.moe")
    every: list[Any] = [getattr(part, "config", None) for part in module.modules()]
    configs = [config for config in every if hasattr(config, "_experts_implementation")]
    if moe is None or not configs:
        yield
        return
    before = [config._experts_implementation for config in configs]
    moe.ALL_EXPERTS_FUNCTIONS.register(_NAME, _forward)
    try:
        for config in configs:
            config._experts_implementation_internal = _NAME
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._experts_implementation_internal = name


def _forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What a class of experts computes for tokens (rows, hidden), each with `top_k` experts and weights."""
    rows, chosen = top_k_index.shape
    expert = top_k_index.reshape(-1)
    x = hidden_states.unsqueeze(1).expand(rows, chosen, hidden_states.shape[-1]).reshape(rows * chosen, -1)
    x = _linear(self, x, "gate_up_proj" if self.has_gate else "up_proj", expert)
    x = self._apply_gate(x) if self.has_gate else self.act_fn(x)
    x = _linear(self, x, "down_proj", expert)
    if self.has_post_expert_norm:
        x = self.post_expert_norm(x)
    x = x.reshape(rows, chosen, -1) * top_k_weights.unsqueeze(-1)
    return x.sum(1).to(hidden_states.dtype)


def _linear(self: Any, x: Tensor, name: str, expert: Tensor) -> Tensor:
    weight = getattr(self, name)
    y = grouped_mm(x, weight if self.is_transposed else weight.transpose(1, 2), expert)
    return y + getattr(self, f"{name}_bias")[expert] if self.has_bias else y
