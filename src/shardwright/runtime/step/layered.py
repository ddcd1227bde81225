"""One step of uneven FSDP: wave by wave, all micro-batches of a wave go through a unit before the next unit.

So weights are gathered and gradients are summed once for each unit and wave, however many micro-batches each rank has
(Cephalo, arXiv 2411.01075 §3). While a unit computes, the weights of the next are on their way, and the gradients of
the one before. The head goes forward and backward at once, so that the logits of one micro-batch are there at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from itertools import pairwise

import torch

from shardwright.cost.pipeline.schedule import BACKWARD, FORWARD, Operation
from shardwright.plans.plan import Recompute
from shardwright.records import record
from shardwright.runtime.model.attention import Documents, documents_of
from shardwright.runtime.model.chunk import Chunk, loss_of, unit_forward
from shardwright.runtime.step.pipeline import Batch, Event, RankPipeline, moment
from shardwright.runtime.step.sync import GradientSync
from shardwright.runtime.step.unshard import Unsharding

# Input and output of a unit for a micro-batch; no output where it runs again before its backward pass.
Kept = tuple[torch.Tensor, torch.Tensor | None]


@record(slots=False)
class _Walk:
    """The way of a wave through the units, shown to whoever measures or waits for it."""

    pipeline: RankPipeline
    unsharding: Unsharding
    record: Callable[[Event], None] | None
    say: Callable[[str], None]
    kept: dict[tuple[int, int], Kept] = field(default_factory=dict)
    documents: dict[int, Documents | None] = field(default_factory=dict)
    embedded: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def chunk(self) -> Chunk:
        return self.pipeline.chunks[0]

    def through(self, unit: int, micro_batch: int, x: torch.Tensor) -> torch.Tensor:
        """Return what a unit makes of a micro-batch, for which layers that share blocks have what was embedded."""
        return unit_forward(self.chunk, unit, x, self.documents[micro_batch], self.embedded.get(micro_batch))

    @contextmanager
    def at(self, unit: int, following: int | None, kind: int, micro_batch: int) -> Iterator[None]:
        """Have the weights of a unit there, and those of the following one on their way, while it computes."""
        way = "forward" if kind == FORWARD else "backward"
        asked = moment(self.pipeline.device)
        self.say(f"waiting for the weights of unit {unit}, {way}")
        self.unsharding.reached(unit)
        if following is not None:
            self.unsharding.fetch(following)
        self.say(f"computing, {way} of unit {unit}")
        began = moment(self.pipeline.device)
        yield
        if self.record is not None:
            ended = moment(self.pipeline.device)
            self.record(Event(operation=Operation(kind, 0, micro_batch), asked=asked, began=began, ended=ended))


def run_layered(
    pipeline: RankPipeline,
    batch: Batch,
    sync: GradientSync,
    unsharding: Unsharding,
    waves: int,
    *,
    loss_scale: float = 1.0,
    record: Callable[[Event], None] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> torch.Tensor:
    """Run all micro-batches of a step in so many waves and return the summed loss. Gradients are those of the loss
    times `loss_scale`; finishing `sync` is left to the caller. `record` is given each unit's pass of all micro-batches
    of a wave as one operation, `note` is told what the rank waits for or does."""
    total = torch.zeros((), dtype=torch.float32, device=pipeline.device)
    walk = _Walk(pipeline=pipeline, unsharding=unsharding, record=record, say=note)
    sync.begin()
    for wave in range(waves):
        numbers = range(wave, pipeline.place.micro_batches, waves)
        targets = {}
        x = {}
        for number in numbers:
            x[number], targets[number] = batch(number)
            walk.documents[number] = documents_of(x[number], walk.chunk.end)
        _forward(walk, x)
        total += _head(walk, x, targets, sync, loss_scale)
        _backward(walk, x, sync)
        sync.pass_done()
    return total


def _forward(walk: _Walk, x: dict[int, torch.Tensor]) -> None:
    """Bring each micro-batch in `x`, tokens, to the head, and keep what its way back needs."""
    units, again = walk.chunk.units, run_again(walk.chunk.units[1:-1], walk.chunk.recompute)
    for unit, following in pairwise(units):
        with walk.at(unit, following, FORWARD, min(x)):
            for number, value in x.items():
                entering = value if unit == 0 else value.requires_grad_()
                with torch.set_grad_enabled(unit not in again):
                    out = walk.through(unit, number, entering)
                walk.kept[unit, number] = (entering, None if unit in again else out)
                x[number] = out.detach()
                if unit == 0 and walk.chunk.model.sharing:
                    walk.embedded[number] = out.detach().requires_grad_()


def _head(
    walk: _Walk, x: dict[int, torch.Tensor], targets: dict[int, torch.Tensor], sync: GradientSync, loss_scale: float
) -> torch.Tensor:
    """Put the gradient of each activation in its place, and return the summed loss."""
    units, pipeline = walk.chunk.units, walk.pipeline
    total = torch.zeros((), dtype=torch.float32, device=pipeline.device)
    with walk.at(units[-1], units[-2], BACKWARD, min(x)):
        sync.reached(units[-1])
        for number, value in x.items():
            entering = value.requires_grad_()
            loss = loss_of(walk.chunk, entering, targets[number])
            total += loss.detach()
            torch.autograd.backward(loss, torch.full_like(loss, pipeline.scale * loss_scale))
            x[number] = _gradient(entering)
    return total


def _backward(walk: _Walk, x: dict[int, torch.Tensor], sync: GradientSync) -> None:
    """Take the gradients in `x` back to the embedding."""
    back = walk.chunk.units[-2::-1]
    for unit, following in zip(back, [*back[1:], None], strict=True):
        with walk.at(unit, following, BACKWARD, min(x)):
            sync.reached(unit)
            for number, gradient in x.items():
                entering, out = walk.kept.pop((unit, number))
                if out is None:
                    out = walk.through(unit, number, entering)
                if unit == 0 and number in walk.embedded:
                    gradient = gradient + _gradient(walk.embedded.pop(number))
                if out.requires_grad:  # the embedding's does not beside adapters
                    torch.autograd.backward(out, gradient)
                if unit:
                    x[number] = _gradient(entering)


def _gradient(entering: torch.Tensor) -> torch.Tensor:
    gradient, entering.grad = entering.grad, None
    assert gradient is not None, "every unit but the embedding has an input with a gradient"
    return gradient


def run_again(layers: Sequence[int], recompute: Recompute) -> frozenset[int]:
    """Return the layers of a chunk of which the input alone is kept: they run forward again in the backward pass."""
    if recompute.granularity != "full":
        return frozenset()
    return frozenset(layers[: recompute.layers] if recompute.method == "block" else layers)
