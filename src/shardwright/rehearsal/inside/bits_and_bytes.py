"""Frozen weights in four bits on fake tensors: bitsandbytes' own modules and operators, which know their shapes.

What they keep is theirs (bitsandbytes 0.50: nn/modules.py, autograd/_functions.py): a matrix is packed in a parameter
of the type that FSDP gathers, its scales stand beside it in `quant_state`, whole on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from shardwright.rehearsal.inside.guard import require
from shardwright.rehearsal.inside.meter import PARAMETERS, Meter

PRODUCT = "product with 4-bit weights"
WHY = (
    "their matrix in 16 bits, then the product, as bitsandbytes 0.50 does on GPUs above 1,536 tokens "
    "(backends/cuda/ops.py: _dequant_linear_fallback)"
)
SCALES = 256  # that share one: quantize_4bit of bitsandbytes/functional.py


def bits_and_bytes() -> Any:
    """Return the library, imported as where there is no GPU, for which its kernels cannot be loaded."""
    require("bitsandbytes", "pip install bitsandbytes")
    cuda: Any = torch.cuda
    release: Any = torch.version
    before = cuda.is_available, release.cuda
    cuda.is_available, release.cuda = (lambda: False), None
    try:
        with _disable_current_modes():
            return import_module("bitsandbytes")
    finally:
        cuda.is_available, release.cuda = before


def quantise(model: Any, fields: dict[str, Any], meter: Meter) -> dict[str, str]:
    """Have the linear layers of a model of transformers be those that `BitsAndBytesConfig` of these fields loads, and
    return what stands in for a kernel."""
    library, config = bits_and_bytes(), import_module("transformers").BitsAndBytesConfig(**fields)
    library.nn.Params4bit.__new__ = _parameter
    before = {name: module for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    import_module("transformers.integrations.bitsandbytes").replace_with_bnb_linear(
        model, modules_to_not_convert=["lm_head"], quantization_config=config
    )
    kind = {"compress_statistics": config.bnb_4bit_use_double_quant, "quant_type": config.bnb_4bit_quant_type}
    for name, linear in before.items():
        module = model.get_submodule(name)
        if isinstance(module, library.nn.Linear4bit):
            packed, state = library.functional.quantize_4bit(
                linear.weight.detach(), quant_storage=config.bnb_4bit_quant_storage, **kind
            )
            meter.mark(PARAMETERS, [state.absmax, *([state.state2.absmax] if state.nested else [])])
            module.quant_state, module.weight = state, library.nn.Params4bit(packed, quant_state=state, **kind)
            module.bias = linear.bias
    model.requires_grad_(False)
    model.is_loaded_in_4bit = True
    operators: Any = torch.ops.bitsandbytes
    operators.gemm_4bit.default = _product(operators, meter)
    return {PRODUCT: WHY}


def _parameter(kind: Any, data: torch.Tensor | None = None, requires_grad: bool = False, **attributes: Any) -> Any:
    """Return a fake tensor, which can be of no other class, as a parameter with the attributes of bitsandbytes'."""
    made: Any = (torch.empty(0) if data is None else data).detach()
    made._is_param = True
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def _product(operators: Any, meter: Meter) -> Callable[..., torch.Tensor]:
    def product(
        x: torch.Tensor,
        packed: torch.Tensor,
        shape: Sequence[int],
        absmax: torch.Tensor,
        blocksize: int,
        kind: str,
        bias: torch.Tensor | None = None,
        absmax_8bit: torch.Tensor | None = None,
        absmax_code: torch.Tensor | None = None,
        absmax_offset: torch.Tensor | None = None,
    ) -> torch.Tensor:
        with meter.shimmed(PRODUCT):
            if absmax_8bit is not None and absmax_offset is not None:
                absmax = operators.dequantize_blockwise(absmax_8bit, absmax, absmax_code, SCALES, torch.float32)
                absmax = absmax + absmax_offset
            whole = operators.dequantize_4bit(packed, absmax, blocksize, kind, shape, x.dtype)
        return torch.nn.functional.linear(x, whole, bias)

    return product
