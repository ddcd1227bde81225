"""The way of the passes through the units: their weights are there when a pass reaches them, their gradients are summed
behind it.

What `buckets.kept_apart` names is gathered for each unit, while the unit before it computes. Holders do so together,
each at the same unit of the same pass; layer by layer the passes say which unit is next (`fetch`). Weights that other
ranks updated are gathered beside the next step's passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch

from shardwright.runtime.layout.groups import Layout, Place
from shardwright.runtime.layout.process_groups import ProcessGroups
from shardwright.runtime.model.products import Later
from shardwright.runtime.state.store import Buffer, Store
from shardwright.runtime.step.sync import Gather, GradientSync, buffers_by_unit, start_gather

OUTSIDE = -1


class Unsharding:
    """Is told by the passes which unit they reach; `release` when all passes of a step are over."""

    def __init__(
        self,
        layout: Layout,
        place: Place,
        store: Store,
        groups: ProcessGroups,
        sync: GradientSync,
        later: Later | None = None,
    ) -> None:
        """`later` has gradients of weights wait: a unit's are complete when those before it in the list are."""
        self._sync, self._rank, self._later = sync, place.rank, later
        held = (*store.buffers, *store.frozen)
        self._groups = {buffer: groups.find("gradient", buffer.bucket.ranks) for buffer in held}
        self._shared = [buffer for buffer in reversed(store.buffers) if self._groups[buffer] is not None]
        units = {unit for chunk in place.chunks for unit in chunk}
        units |= {unit for buffer in held for unit in buffer.bucket.units}  # a tied embedding's too
        self._needed = buffers_by_unit(layout, held, units)
        forward = {low: high for chunk in place.chunks for low, high in pairwise(chunk)}
        recompute = layout.plan.replicas[place.replica].stages[place.stage].recompute
        in_groups = recompute.granularity == "full" and recompute.method != "block" and (recompute.layers or 0) > 1
        self._next = {} if layout.plan.layered else forward
        self._before = {} if in_groups or layout.plan.layered else {high: low for low, high in forward.items()}
        self._coming: dict[Buffer, Gather] = {}
        self._open: list[Buffer] = []

    def collect(self) -> None:
        """Begin to gather the weights that other ranks updated, those of the first units first."""
        for buffer in self._shared:
            if not buffer.weights.sharded:
                self._begin(buffer, buffer.weights.part(*buffer.bucket.own(self._rank, sharded=True)).clone())

    def arrive(self) -> None:
        """Wait for all weights that are on their way."""
        for buffer in list(self._coming):
            self._wait(buffer)

    def reached(self, unit: int) -> None:
        """Have the weights of a unit there, of those that are kept apart no others, and the next ones on their way."""
        going_back = torch._C._current_graph_task_id() != OUTSIDE
        self._have(unit, (self._before if going_back else self._next).get(unit))

    def leaves(self, unit: int, x: torch.Tensor) -> None:
        """Note the output of a unit: as soon as its gradient is there, the backward pass has reached the unit."""
        if x.requires_grad:
            x.register_hook(lambda _: self._back(unit))  # type: ignore[no-untyped-call]

    def fetch(self, unit: int) -> None:
        """Begin to gather the weights of the unit that is next, beside what computes."""
        self._fetch([buffer for buffer in self._needed[unit] if buffer.weights.sharded])

    def release(self) -> None:
        """Free all that was gathered for units."""
        for buffer in self._open:
            self._wait(buffer)
            buffer.weights.close()
        self._open = []

    def _back(self, unit: int) -> None:
        self._close_all_but(self._wanted(unit, self._before.get(unit)))
        if self._later is None:
            self._sync.reached(unit)
        else:
            self._later.append(partial(self._sync.reached, unit))
        self._have(unit, self._before.get(unit))

    def _have(self, unit: int, following: int | None) -> None:
        wanted = self._wanted(unit, following)
        self._close_all_but(wanted)
        self._fetch(wanted)
        for buffer in self._needed[unit]:
            self._wait(buffer)

    def _wanted(self, unit: int, following: int | None) -> list[Buffer]:
        """Return what is kept apart of a unit and of the one after it."""
        both = [*self._needed[unit], *([] if following is None else self._needed[following])]
        return list(dict.fromkeys(buffer for buffer in both if buffer.weights.sharded))

    def _close_all_but(self, wanted: Sequence[Buffer]) -> None:
        for buffer in self._open:
            if buffer not in wanted:
                self._wait(buffer)
                buffer.weights.close()
        self._open = [buffer for buffer in self._open if buffer in wanted]

    def _fetch(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            if buffer not in self._open:
                buffer.weights.open()
                self._begin(buffer, buffer.weights.kept)
                self._open.append(buffer)

    def _begin(self, buffer: Buffer, part: torch.Tensor) -> None:
        # `data` has no version: autograd need not know that weights it has saved are there again
        self._coming[buffer] = start_gather(buffer.bucket, buffer.weights.whole.data, part, self._groups[buffer])

    def _wait(self, buffer: Buffer) -> None:
        coming = self._coming.pop(buffer, None)
        if coming is not None:
            coming.wait()
