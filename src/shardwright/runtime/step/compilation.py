"""Layers are compiled before the first step, on all ranks at once.

Compilation begins with the first call. In a pipeline a stage would first be called by the message of the one before,
and so stages would compile one after another, while all the others wait in communication that has a time limit.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from shardwright.runtime.model.chunk import Chunk, forward
from shardwright.runtime.step.engine import Engine


def run_each_kind(engine: Engine, *, evaluates: bool) -> None:
    """Run a layer of each kind that this rank has, forward and backward, and forward alone where it `evaluates`. The
    gradients are zeros, and no message leaves the stage. Ranks that share layers must call it together, between steps.

    (Layer by layer, as in uneven FSDP, all ranks begin with the same unit: nothing is to be compiled ahead there.)"""
    if engine.layout.plan.layered:
        return
    channels, sync = engine.pipeline.channels, engine.sync
    generator = torch.Generator(device=channels.device).manual_seed(0)  # tokens that go to different experts
    x = torch.randn(channels.shape, dtype=channels.dtype, device=channels.device, generator=generator)
    sync.begin()
    for chunk in map(one_of_each_kind, engine.pipeline.chunks):
        if not chunk.units:
            continue
        if evaluates:
            with torch.no_grad():
                forward(chunk, x)
            engine.unsharding.release()
        after_frozen = engine.layout.plan.job.adapters and 0 in engine.place.units  # what embeds has no gradient then
        for needed in (True, False) if after_frozen else (True,):
            out = forward(chunk, x.detach().requires_grad_(needed))
            if out.requires_grad:
                torch.autograd.backward(out, torch.zeros_like(out))
            sync.pass_done()
            sync.settle()
            engine.unsharding.release()


def one_of_each_kind(chunk: Chunk) -> Chunk:
    """Return a chunk with the first layer of each kind, without embedding and head."""
    layers = chunk.model.layers
    first = {layers[unit - 1]: unit for unit in reversed(chunk.units) if 0 < unit <= len(layers)}
    return replace(chunk, units=tuple(sorted(first.values())))
