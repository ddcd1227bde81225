"""Layers compiled as regions: each kind of layer once, whatever their number (as torchtitan does).

Collectives of tensor parallelism are part of the compiled region, the same one on all ranks of a stage, which so meet
in the same order. Attention under context parallelism differs from rank to rank, and for experts on several ranks the
host reads how many rows go where: these run operator by operator between two regions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from shardwright.runtime.model.blocks import layer_forward
from shardwright.runtime.model.experts import called
from shardwright.runtime.model.gated import Weights

LayerForward = Callable[..., torch.Tensor]


class _Same(torch.autograd.Function):
    """A weight as another tensor with the same memory. Dynamo takes none whose gradient has another type, and those of
    16-bit weights are in fp32: without this, a layer would fall apart into several graphs."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.data

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def compiled(say: Callable[[str], None] | None = None, **options: Any) -> LayerForward:
    """Return `layer_forward`, compiled with these `options` of torch.compile when it is first called. Where that fails,
    layers run operator by operator, and `say` is told why, once."""
    from torch._dynamo.exc import TorchDynamoException  # two seconds, which ranks that do not compile are spared

    tell = say or (lambda words: print(f"warning: {words}", file=sys.stderr, flush=True))
    fast: list[LayerForward] = [torch.compile(layer_forward, dynamic=False, **options)]
    apart = torch.compiler.disable(called)  # type: ignore[no-untyped-call]

    def run(x: torch.Tensor, weights: Weights, *others: Any, **settings: Any) -> torch.Tensor:
        if not fast:
            return layer_forward(x, weights, *others, **settings)
        same: Any = _Same
        aliases = {name: same.apply(weight) for name, weight in weights.items()}
        try:
            return fast[0](x, aliases, *others, apart=apart, **settings)
        except (TorchDynamoException, ImportError, OSError) as error:
            fast.clear()
            reason = " ".join(str(error).strip().split("\n")[:2])
            tell(f"layers are not compiled and run operator by operator: {type(error).__name__}: {reason}")
            return layer_forward(x, weights, *others, **settings)

    return run
