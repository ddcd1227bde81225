"""What ranks send each other: a handful of collectives on rows of unequal numbers, on gloo and NCCL.

Every collective works along dimension 0; `convert` knows about the others. gloo has no all-gather of unequal parts, so
parts are padded to the largest, or sent by one broadcast (or reduce) for each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

Finish = Callable[[], Tensor]  # waits for a collective and returns its result


class RankFabric(Protocol):
    """The ranks that run one program, as one of them sees them. All ranks call the same methods in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    def all_reduce(self, x: Tensor, *, largest: bool = False, hierarchical: bool = False) -> Finish:
        """Sum `x` over all ranks, or take the largest of each element."""

    def all_gather(self, part: Tensor, rows: Sequence[int], *, padded: bool) -> Finish:
        """Join the parts of all ranks; `rows` says how many rows each has."""

    def reduce_scatter(self, whole: Tensor, rows: Sequence[int], *, padded: bool) -> Finish:
        """Sum `whole` over all ranks and return the rows of this one; `rows` says how many each gets."""

    def all_to_all(self, parts: Sequence[Tensor], counts: Sequence[int]) -> Finish:
        """Send each rank its flat part; return what comes in, `counts` elements from each, joined."""


class ProcessFabric:
    """The processes of the default group of `torch.distributed`; `machines` tells on which machine each rank runs."""

    def __init__(self, machines: Sequence[int] = ()) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._machine, self._leaders, self._leader = _groups(machines or [0] * self.ranks, self.rank)
        self._thread = ThreadPoolExecutor(1)  # one, so that all ranks call in the same order
        self._stream: Any = None

    def all_reduce(self, x: Tensor, *, largest: bool = False, hierarchical: bool = False) -> Finish:
        x = x.clone(memory_format=torch.contiguous_format)
        if hierarchical and self._machine is not None:
            return self._all_reduce_by_machine(x)
        work = dist.all_reduce(x, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, async_op=True)
        return lambda: _after([work], x)

    def all_gather(self, part: Tensor, rows: Sequence[int], *, padded: bool) -> Finish:
        most, rest = max(rows), part.shape[1:]
        if padded:
            gathered = part.new_empty(len(rows) * most, *rest)
            works = [dist.all_gather_single(gathered, _padded(part, most), async_op=True)]
            kept = [gathered]  # given up once its rows are joined, though the caller may still hold the function
            return lambda: _after(works, lambda: _joined(kept.pop(), rows))
        whole = part.new_empty(sum(rows), *rest)
        places = whole.split(list(rows))
        places[self.rank].copy_(part)
        works = [dist.broadcast(x, rank, async_op=True) for rank, x in enumerate(places) if x.numel()]
        return lambda: _after(works, whole)

    def reduce_scatter(self, whole: Tensor, rows: Sequence[int], *, padded: bool) -> Finish:
        parts = whole.split(list(rows))
        if padded:
            apart = whole.contiguous() if min(rows) == max(rows) else torch.cat([_padded(x, max(rows)) for x in parts])
            result = whole.new_empty(max(rows), *whole.shape[1:])
            works = [dist.reduce_scatter_single(result, apart, async_op=True)]
            return lambda: _after(works, lambda: result[: rows[self.rank]].clone())
        pieces = [part.clone(memory_format=torch.contiguous_format) for part in parts]
        works = [dist.reduce(part, rank, async_op=True) for rank, part in enumerate(pieces) if part.numel()]
        return lambda: _after(works, lambda: pieces[self.rank].clone())

    def all_to_all(self, parts: Sequence[Tensor], counts: Sequence[int]) -> Finish:
        sent = torch.cat(list(parts))
        received = sent.new_empty(sum(counts))
        work = dist.all_to_all_single(received, sent, list(counts), [part.numel() for part in parts], async_op=True)
        return lambda: _after([work], received)

    def _all_reduce_by_machine(self, x: Tensor) -> Finish:
        """Sum by machines beside what the rank computes: three calls that wait for each other go to a stream of their
        own, or to a thread where there are no streams."""
        if not x.is_cuda:
            return self._thread.submit(self._sum_by_machine, x).result
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._sum_by_machine(x)
            done = self._stream.record_event()

        def finish() -> Tensor:
            torch.cuda.current_stream().wait_event(done)
            return x

        return finish

    def _sum_by_machine(self, x: Tensor) -> Tensor:
        """Sum in each machine to its first rank, between those, and hand the sum on in each machine."""
        dist.reduce(x, self._leader, group=self._machine)
        if self.rank == self._leader:
            dist.all_reduce(x, group=self._leaders)
        dist.broadcast(x, self._leader, group=self._machine)
        return x


def _groups(machines: Sequence[int], rank: int) -> tuple[Any, Any, int]:
    """Return the group of this rank's machine, the group of the machines' first ranks, and its first rank."""
    members = {machine: [r for r, at in enumerate(machines) if at == machine] for machine in dict.fromkeys(machines)}
    if len(members) == 1:
        return None, None, 0
    mine = None
    for at, ranks in members.items():
        group = dist.new_group(ranks)
        mine = group if at == machines[rank] else mine
    return mine, dist.new_group([ranks[0] for ranks in members.values()]), members[machines[rank]][0]


def _joined(gathered: Tensor, rows: Sequence[int]) -> Tensor:
    """Return the first `rows` of each of as many equal parts one after the other."""
    if min(rows) == max(rows):
        return gathered
    return torch.cat([part[:count] for part, count in zip(gathered.split(max(rows)), rows, strict=True)])


def _padded(part: Tensor, rows: int) -> Tensor:
    return (
        torch.cat([part, part.new_zeros(rows - part.shape[0], *part.shape[1:])])
        if part.shape[0] < rows
        else part.contiguous()
    )


def _after(works: list[Any], result: Tensor | Callable[[], Tensor]) -> Tensor:
    while works:
        works.pop(0).wait()  # and its own copies are gone
    return result() if callable(result) else result
