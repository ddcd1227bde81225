"""Layer-wise gradient synchronisation: a unit's gradient is summed over its holders while earlier units still compute.

Autograd adds gradients to their buffers itself. When the last micro-batch has left the units of a bucket behind, its
sum starts in the background. Buckets start in one order on all ranks, last units first: then no two ranks can wait for
each other. Gradients of which a rank keeps a part alone (`buckets.kept_apart`) are summed after every micro-batch,
when its backward pass leaves the units of the bucket, and the whole is freed.

Unequal parts go through a buffer of as many parts as there are holders, each as long as the longest: gloo has no gather
of unequal parts, and a ring takes as long for the longest anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from shardwright.records import record
from shardwright.runtime.layout.groups import Layout, Place
from shardwright.runtime.layout.process_groups import ProcessGroups
from shardwright.runtime.model.parallel import gather_into, reduce_scatter_into
from shardwright.runtime.state.buckets import Bucket
from shardwright.runtime.state.store import Buffer, Store, local_part


@record
class Gather:
    """Parts on their way into `whole`: through `padded`, where they are unequal."""

    bucket: Bucket
    whole: torch.Tensor
    padded: torch.Tensor | None
    sent: torch.Tensor
    work: Any

    def wait(self) -> None:
        self.work.wait()
        if self.padded is not None:
            for part, (start, stop) in _padded_parts(self.bucket, self.padded):
                self.whole[start:stop].copy_(part)


@record
class Scatter:
    """A sum over the holders on its way; `wait` returns this rank's part of it."""

    out: torch.Tensor
    elements: int
    sent: torch.Tensor
    work: Any

    def wait(self) -> torch.Tensor:
        self.work.wait()
        return self.out[: self.elements]


def start_gather(bucket: Bucket, whole: torch.Tensor, kept: torch.Tensor, group: Any) -> Gather:
    """Begin to collect the parts `kept` of all holders. Each must begin the same gathers in the same order."""
    longest = _longest(bucket)
    if longest * len(bucket.ranks) == bucket.elements:
        work = gather_into(whole, kept, group=group, async_op=True)
        return Gather(bucket=bucket, whole=whole, padded=None, sent=kept, work=work)
    sent = kept.new_zeros(longest)
    sent[: kept.numel()].copy_(kept)
    padded = kept.new_empty(longest * len(bucket.ranks))
    work = gather_into(padded, sent, group=group, async_op=True)
    return Gather(bucket=bucket, whole=whole, padded=padded, sent=sent, work=work)


def start_scatter(bucket: Bucket, whole: torch.Tensor, rank: int, group: Any) -> Scatter:
    """Begin to sum `whole` over the holders, of which `rank` gets its part."""
    longest = _longest(bucket)
    start, stop = bucket.own(rank, sharded=True)
    sent = whole
    if longest * len(bucket.ranks) != bucket.elements:
        sent = whole.new_zeros(longest * len(bucket.ranks))
        for part, (begin, end) in _padded_parts(bucket, sent):
            part.copy_(whole[begin:end])
    out = whole.new_empty(longest)
    work = reduce_scatter_into(out, sent, group=group, async_op=True)
    return Scatter(out=out, elements=stop - start, sent=sent, work=work)


def _longest(bucket: Bucket) -> int:
    return max(stop - start for start, stop in bucket.parts)


def _padded_parts(bucket: Bucket, padded: torch.Tensor) -> Iterator[tuple[torch.Tensor, tuple[int, int]]]:
    longest = _longest(bucket)
    for index, (start, stop) in enumerate(bucket.parts):
        yield padded[index * longest : index * longest + stop - start], (start, stop)


@record
class Leaving:
    """The gradients of a micro-batch on their way to the ranks that keep them."""

    buffer: Buffer
    scatter: Scatter


class GradientSync:
    """The sums of one rank's gradients in one step: `begin`, then the backward passes, then `finish`.

    `sharded`: each holder needs the sum of its own part of a bucket alone (distributed optimizer). Without `overlap`
    all sums start in `finish`.
    """

    def __init__(
        self, layout: Layout, place: Place, store: Store, groups: ProcessGroups, *, sharded: bool, overlap: bool
    ) -> None:
        self._place, self._store, self._sharded, self._overlap = place, store, sharded, overlap
        self._groups = {buffer: groups.find("gradient", buffer.bucket.ranks) for buffer in store.buffers}
        self._whole = [buffer for buffer in store.buffers if not buffer.gradients.sharded]
        self._parts = [buffer for buffer in store.buffers if buffer.gradients.sharded]
        self._inner = _inner_groups(layout, place, groups)
        self._sequence = layout.plan.sequence_parallel
        self._chunk = {unit: c for c, units in enumerate(place.chunks) for unit in units}
        self._needed = buffers_by_unit(layout, self._parts, self._chunk)
        apart = [store.parameters[name] for name, parts in store.where.items() if not parts[0][0].bucket.alone]
        self._sums = [buffer.gradients.kept for buffer in store.buffers]
        self._sums += [parameter.grad for parameter in apart if parameter.grad is not None]
        self._work: list[Any] = []
        self._final: set[int] = set()
        self._done: set[int] = set()
        self._next = 0
        self._unit: int | None = None
        self._open: set[Buffer] = set()
        self._leaving: Leaving | None = None

    def begin(self) -> None:
        """Start a step: no gradients yet."""
        self._final, self._done = set(), set()
        self._work, self._next = [], 0
        if self._sums:  # a stage may have no layer
            torch._foreach_zero_(self._sums)

    def reached(self, unit: int | None) -> None:
        """Say that a backward pass begins with a unit (None: that it is over): gradients of the one before are complete
        for its micro-batch, and those kept in part are summed."""
        before, self._unit = self._unit, unit
        if before is None:  # what left the last pass has had a forward pass to arrive in
            self.settle()
        for buffer in self._parts:
            if before in buffer.bucket.units and unit not in buffer.bucket.units:
                self._sum_inside(buffer)
                self.settle()
                self._leave(buffer)
        for buffer in () if unit is None else self._needed.get(unit, ()):
            self._make_whole(buffer)
        if before is not None and unit is not None and self._chunk[before] in self._final:
            self._done.add(before)
            if self._overlap:
                self._advance()

    def pass_done(self) -> None:
        """Say that a backward pass is over."""
        self.reached(None)

    def last_micro_batch(self, chunk: int) -> None:
        """Announce the last backward pass through a chunk."""
        self._final.add(chunk)

    def chunk_done(self, chunk: int) -> None:
        """Say that the last backward pass through a chunk is over: parameters it did not touch have no gradient."""
        self._done.update(self._place.chunks[chunk])
        if self._overlap:
            self._advance()

    def finish(self) -> None:
        """Start what has not started, and wait until all sums are there."""
        self._done.update(self._chunk, *(buffer.bucket.units for buffer in self._whole))
        self._advance()
        for work in self._work:
            work.wait()
        self._work = []
        self.settle()
        assert not self._open, "every gradient has left its unit before the step ends"

    def _advance(self) -> None:
        while self._next < len(self._whole) and self._complete(self._whole[self._next]):
            self._start(self._whole[self._next])
            self._next += 1

    def _complete(self, buffer: Buffer) -> bool:
        return self._done.issuperset(buffer.bucket.units)

    def _start(self, buffer: Buffer) -> None:
        if not buffer.bucket.alone:
            for piece in buffer.bucket.pieces:
                gradient = self._store.parameters[piece.parameter.name].grad
                assert gradient is not None, "a parameter has a gradient from the beginning"
                buffer.gradients.piece(piece).copy_(local_part(gradient, piece))
        self._sum_inside(buffer)
        whole, group = buffer.gradients.whole, self._groups[buffer]
        if group is None:
            return
        if self._sharded:
            own = buffer.gradients.part(*buffer.bucket.own(self._place.rank, sharded=True))
            self._work.append(reduce_scatter_into(own, whole, group=group, async_op=True))
        else:
            self._work.append(dist.all_reduce(whole, group=group, async_op=True))

    def _make_whole(self, buffer: Buffer) -> None:
        """Have memory for all gradients of a bucket, zero where a micro-batch has given none."""
        if not buffer.gradients.sharded or buffer in self._open:
            return
        if self._leaving is not None and self._leaving.buffer is buffer:
            self.settle()
        buffer.gradients.open()
        buffer.gradients.whole.zero_()
        self._open.add(buffer)

    def _leave(self, buffer: Buffer) -> None:
        """Start the sum of a micro-batch's gradients, of which this rank adds its part to what it keeps."""
        scatter = start_scatter(buffer.bucket, buffer.gradients.whole, self._place.rank, self._groups[buffer])
        self._leaving = Leaving(buffer=buffer, scatter=scatter)
        self._open.discard(buffer)

    def settle(self) -> None:
        """Wait for the sum under way, and free what it came from."""
        if self._leaving is not None:
            self._leaving.buffer.gradients.kept.add_(self._leaving.scatter.wait())
            self._leaving.buffer.gradients.close()
            self._leaving = None

    def _sum_inside(self, buffer: Buffer) -> None:
        """Sum over the stage's ranks what each of them has a part of."""
        for how, group in self._inner.items():
            if how == "sequence" and not self._sequence:
                continue
            parts = [buffer.gradients.piece(piece) for piece in buffer.bucket.pieces if piece.summed == how]
            if parts:
                _sum_together(parts, group)


def buffers_by_unit(layout: Layout, buffers: Sequence[Buffer], units: Iterable[int]) -> dict[int, list[Buffer]]:
    """Return the buffers that a pass through each unit needs: of the head those of a tied embedding too, and of every
    layer what layers share."""
    needed = {unit: [buffer for buffer in buffers if unit in buffer.bucket.units] for unit in units}
    if layout.plan.model.tied_embeddings and layout.head in needed:
        needed[layout.head] += needed.get(0, [])
    if layout.plan.model.sharing:
        for unit in range(1, layout.head):
            needed[unit] += needed[0]
    return needed


def _inner_groups(layout: Layout, place: Place, groups: ProcessGroups) -> dict[str, Any]:
    """Return the groups within the stage over which parameters of each kind are summed, none for one rank."""
    ranks = layout.tensor_group(place)
    if len(ranks) == 1:
        return {}
    tensor = groups.find("tensor", ranks)
    copies = layout.copies_group(place)
    return {"sequence": tensor, "tensor": tensor} | ({"copies": groups.find("copies", copies)} if copies else {})


def _sum_together(parts: Sequence[torch.Tensor], group: Any) -> None:
    flat = torch.cat([part.reshape(-1) for part in parts])
    dist.all_reduce(flat, group=group)
    for part, value in zip(parts, torch.split(flat, [part.numel() for part in parts]), strict=True):
        part.copy_(value.view(part.shape))
