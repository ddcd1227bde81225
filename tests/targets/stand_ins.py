"""What Megatron's code looks at of packages that cannot be imported without CUDA."""

from __future__ import annotations

import sys
import types
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

OPTIMIZERS = "transformer_engine.pytorch.optimizers"


def fused_adam(master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any) -> None:
    """Stands for Transformer Engine's optimizer, of which the arguments are looked at."""


def with_fused_adam() -> AbstractContextManager[Any]:
    """Return a context in which Transformer Engine's optimizer is there."""
    module = types.ModuleType(OPTIMIZERS)
    module.FusedAdam = fused_adam  # type: ignore[attr-defined]
    return mock.patch.dict(sys.modules, {OPTIMIZERS: module})
