"""Layers compiled as regions: each kind of layer once, whatever their number (as torchtitan does).

Collectives of tensor parallelism are part of the compiled region, the same one on all ranks of a stage, which so meet
in the same order. Under context parallelism regions differ from rank to rank, and with shared experts the host reads
how many rows go where: these layers run operator by operator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from shardwright.runtime.model.blocks import layer_forward
from shardwright.runtime.model.context import ContextGroup
from shardwright.runtime.model.parallel import ExpertGroup
from shardwright.spec.model import Model

LayerForward = Callable[..., torch.Tensor]


def why_not_compiled(model: Model, experts: ExpertGroup, context: ContextGroup) -> str:
    """Return why the layers of a rank run operator by operator, nothing where they may be compiled."""
    parallel = {
        "context parallelism": context.size > 1,
        "experts on several ranks": any(kind.moe for kind in model.kinds) and experts.size > 1,
    }
    found = [name for name, there in parallel.items() if there]
    return f"they communicate inside ({', '.join(found)})" if found else ""


def compiled(say: Callable[[str], None] | None = None, **options: Any) -> LayerForward:
    """Return `layer_forward`, compiled with these `options` of torch.compile when it is first called. Where that fails,
    layers run operator by operator, and `say` is told why, once."""
    from torch._dynamo.exc import TorchDynamoException  # two seconds, which ranks that do not compile are spared

    tell = say or (lambda words: print(f"warning: {words}", file=sys.stderr, flush=True))
    fast: list[LayerForward] = [torch.compile(layer_forward, dynamic=False, **options)]

    def run(*arguments: Any, **settings: Any) -> torch.Tensor:
        if not fast:
            return layer_forward(*arguments, **settings)
        try:
            return fast[0](*arguments, **settings)
        except (TorchDynamoException, ImportError, OSError) as error:
            fast.clear()
            reason = " ".join(str(error).strip().split("\n")[:2])
            tell(f"layers are not compiled and run operator by operator: {type(error).__name__}: {reason}")
            return layer_forward(*arguments, **settings)

    return run
