"""Operators that PyTorch would choose on a GPU, where fake tensors would be taken apart into others.

On a GPU `scaled_dot_product_attention` takes a flash kernel and `rms_norm` a fused one (PyTorch 2.13:
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and aten/src/ATen/native/layer_norm.cpp); on fake tensors both
would be the formulas that a CPU takes. The operator of attention is PyTorch's own, with its own record of what the
backward pass needs: a choice. The fused norm cannot record it on fake tensors, so that is a shim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from shardwright.rehearsal.inside.meter import Meter

CHOICES = ("attention: PyTorch's flash kernel (aten::_scaled_dot_product_flash_attention)",)
NORM = "RMSNorm"
SHIMS = {
    NORM: "keeps its input, its weight and an fp32 number a row, as _fused_rms_norm of PyTorch 2.13 does "
    "(derivatives.yaml)",
}
LOWER_RIGHT = object()
HEAD_MULTIPLE = 8  # sdp_utils.cpp pads heads of other sizes for the flash kernel


def choose_kernels(meter: Meter) -> None:
    """Have attention and RMSNorm take the operators that a GPU takes."""

    def norm(
        input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
    ) -> torch.Tensor:
        shape = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
        function: Any = FusedRmsNorm
        out: torch.Tensor = function.apply(input, weight, shape, eps, meter)
        return out

    holder: Any = functional
    holder.scaled_dot_product_attention, holder.rms_norm = flash_attention, norm
    whole: Any = torch
    whole.rms_norm = norm


def choose_lower_right() -> None:
    """Have masks that begin at the last keys be marks of a causal kernel: tensors of their kind cannot be fake ones."""
    from torch.nn.attention import bias

    holder: Any = bias
    holder.causal_lower_right = lambda *_: LOWER_RIGHT


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: object = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return attention by the flash kernel, which takes grouped heads as they are. A mask is taken for a causal one."""
    width = query.shape[-1]
    padding = -width % HEAD_MULTIPLE
    if padding:
        query, key, value = (functional.pad(part, [0, padding]) for part in (query, key, value))
    causal = is_causal or attn_mask is not None
    scale = width**-0.5 if scale is None else scale
    operator: Any = torch.ops.aten._scaled_dot_product_flash_attention
    out: torch.Tensor = operator(query, key, value, dropout_p, causal, False, scale=scale)[0]
    return out[..., :width] if padding else out


class FusedRmsNorm(torch.autograd.Function):
    """RMSNorm by the fused kernel, and what its backward pass keeps and returns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, shape: Any, epsilon: Any, meter: Meter) -> Any:
        ctx.meter = meter
        with meter.shimmed(NORM):
            out, inverse = torch.ops.aten._fused_rms_norm(x, shape, weight, epsilon)
        ctx.save_for_backward(x, weight, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight, _ = ctx.saved_tensors
        with ctx.meter.shimmed(NORM):
            into_weight = None if weight is None else torch.empty_like(weight)
            return torch.empty_like(x), into_weight, None, None, None
