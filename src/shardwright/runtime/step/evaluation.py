"""The loss on a global batch without training on it: the forward passes of a step alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from shardwright.runtime.model.attention import documents_of
from shardwright.runtime.model.chunk import loss_of, unit_forward
from shardwright.runtime.step.engine import Engine, mean_loss
from shardwright.runtime.step.pipeline import Batch, run_forward


def evaluate(engine: Engine, batch: Batch, note: Callable[[str], None] | None = None) -> float:
    """Return the mean loss over the tokens of a global batch, the same on all ranks. Every rank must call it between
    steps; weights and optimizer state stay as they are. `note` is told what the rank waits for or does."""
    with torch.no_grad():
        loss = _layered(engine, batch) if engine.layout.plan.layered else run_forward(engine.pipeline, batch, note)
    engine.unsharding.release()
    mean = mean_loss(engine, loss)
    if engine.layout.world_size > 1:
        dist.all_reduce(mean)
    return float(mean)


def _layered(engine: Engine, batch: Batch) -> torch.Tensor:
    """Return the summed loss of this rank's micro-batches, all of which go through a unit before the next one."""
    pipeline, unsharding = engine.pipeline, engine.unsharding
    (chunk,) = pipeline.chunks
    pairs = [batch(number) for number in range(pipeline.place.micro_batches)]
    x = [tokens for tokens, _ in pairs]
    documents = [documents_of(tokens, chunk.end) for tokens in x]
    for unit in chunk.units:
        unsharding.reached(unit)
        if unit < engine.layout.head:
            unsharding.fetch(unit + 1)
            x = [unit_forward(chunk, unit, value, inside) for value, inside in zip(x, documents, strict=True)]
    losses = [loss_of(chunk, value, targets) for value, (_, targets) in zip(x, pairs, strict=True)]
    return torch.stack(losses).sum() if losses else torch.zeros((), device=pipeline.device)
