"""The update of a step: fp32 master weights by the method of their segment, then the weights that are computed with.
Each holder of a bucket may update its own part alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from shardwright.runtime.layout.process_groups import ProcessGroups
from shardwright.runtime.model.parallel import gather_into
from shardwright.runtime.state.muon import Orthogonaliser, Steps, muon, orthogonalised
from shardwright.runtime.state.recipe import Method, Recipe
from shardwright.runtime.state.slots import METHODS, Slot, StepVerdict, Update
from shardwright.runtime.state.store import Store

NORM_ELEMENTS = 1 << 16


def own_square(store: Store, rank: int, device: torch.device) -> torch.Tensor:
    """Return the sum of squares of this rank's share of the summed gradients; over all ranks it gives the square of the
    global norm, each weight of the model counted once."""
    parts = []
    for buffer in store.buffers:
        start, stop = buffer.bucket.own(rank, sharded=True)
        for segment in buffer.bucket.segments:
            low, high = max(start, segment.start), min(stop, segment.stop)
            if segment.counted and low < high:
                parts.append(buffer.gradients.part(low, high))
    if not parts:
        return torch.zeros((), dtype=torch.float32, device=device)
    if device.type == "cpu":  # where PyTorch adds one square after the other: 4e-4 too little for ten million
        parts = [chunk for part in parts for chunk in torch.split(part, NORM_ELEMENTS)]
    return torch.stack(torch._foreach_norm(parts)).square().sum()


def update(
    slots: Sequence[Slot],
    recipe: Recipe,
    step: int,
    verdict: StepVerdict,
    *,
    skipped: int = 0,
    steps: Steps = (),
) -> None:
    """Update the master weights as the verdict on the gradients says, and the weights of the buffers from them: a few
    calls for all slots, on each rank by itself. `skipped` of the steps before this one had no update; `steps` are
    Muon's."""
    ordered = sorted(slots, key=lambda slot: _treatment(slot, recipe))
    for (_, _, method), alike in groupby(ordered, lambda slot: _treatment(slot, recipe)):
        some = _update(tuple(alike), recipe, step, verdict, skipped)
        if method == "muon":
            here = set(some.slots)
            muon(some, [item for item in steps if item[0][0] in here])
        else:
            METHODS[method](some)
    weights = [(slot.buffer.weights.part(slot.start, slot.stop), slot.master) for slot in slots]
    apart = [(part, master) for part, master in weights if part.data_ptr() != master.data_ptr()]
    if apart:
        torch._foreach_copy_([part for part, _ in apart], [master for _, master in apart])


def muon_steps(
    slots: Sequence[Slot], recipe: Recipe, step: int, verdict: StepVerdict, orthogonaliser: Orthogonaliser
) -> Steps:
    """Return what Muon's update needs, which all ranks must ask for together."""
    matrices = [slot for slot in slots if recipe.rule(slot.segment) == "muon"]
    return orthogonalised(_update(matrices, recipe, step, verdict, 0), orthogonaliser)


def _update(slots: Sequence[Slot], recipe: Recipe, step: int, verdict: StepVerdict, skipped: int) -> Update:
    return Update(
        slots=tuple(slots),
        gradients=tuple(slot.gradient.to(slot.master.device) for slot in slots),
        recipe=recipe,
        rate=recipe.rate(step),
        decay=recipe.weight_decay if slots and slots[0].segment.decayed else 0.0,
        updates=step - skipped,
        verdict=verdict.on(slots[0].master.device) if slots else verdict,
    )


def _treatment(slot: Slot, recipe: Recipe) -> tuple[bool, bool, Method]:
    """Return what one call has in common: where state is, whether it decays, and its method."""
    return slot.master.device != slot.gradient.device, not slot.segment.decayed, recipe.rule(slot.segment)


def gather_weights(store: Store, rank: int, groups: ProcessGroups) -> None:
    """Collect from all holders the parts of each bucket that they updated, where these hold all of it."""
    work = []
    for buffer in store.buffers:
        group = groups.find("gradient", buffer.bucket.ranks)
        if group is not None and not buffer.weights.sharded:
            part = buffer.weights.part(*buffer.bucket.own(rank, sharded=True)).clone()
            work.append((gather_into(buffer.weights.whole, part, group=group, async_op=True), part))
    for item, _ in work:
        item.wait()


def verdict_on(norm: torch.Tensor, loss: torch.Tensor, clip: float, scale: float) -> StepVerdict:
    """Return what a loss and the norm of the gradients decide: these are divided so that their norm is at most `clip`
    (0: no limit) and by the `scale` of the loss; where one of them is not finite, nothing is updated."""
    over = ((norm + 1e-6) / clip).clamp(min=1.0) if clip else torch.ones_like(norm)
    finite = torch.isfinite(norm) & torch.isfinite(loss)
    return StepVerdict(divisor=over * scale, left_out=(~finite).to(torch.float32))
