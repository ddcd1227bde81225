"""Ranks as threads of one process, so that a program can be run without starting processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Board:
    """Where ranks that are threads lay down what the others read."""

    def __init__(self, ranks: int) -> None:
        self.slots: list[Any] = [None] * ranks
        self.barrier = threading.Barrier(ranks)


class ThreadFabric:
    """A `RankFabric` whose ranks are threads; sums are taken in the order of the ranks."""

    def __init__(self, rank: int, ranks: int, board: Board) -> None:
        self.rank, self.ranks, self._board = rank, ranks, board

    def _exchange(self, mine: T) -> list[T]:
        self._board.slots[self.rank] = mine
        self._board.barrier.wait()
        everything = list(self._board.slots)
        self._board.barrier.wait()
        return everything

    def all_reduce(self, x: Tensor, *, largest: bool = False, hierarchical: bool = False) -> Callable[[], Tensor]:
        first, *others = self._exchange(x)
        result = first.clone()
        for part in others:
            result = torch.maximum(result, part) if largest else result.add_(part)
        return lambda: result

    def all_gather(self, part: Tensor, rows: Sequence[int], *, padded: bool) -> Callable[[], Tensor]:
        parts = self._exchange(part)
        assert [x.shape[0] for x in parts] == list(rows)
        return lambda: torch.cat(parts)

    def reduce_scatter(self, whole: Tensor, rows: Sequence[int], *, padded: bool) -> Callable[[], Tensor]:
        first, *others = [sent.split(list(rows))[self.rank] for sent in self._exchange(whole)]
        total = first.clone()
        for part in others:
            total.add_(part)
        return lambda: total

    def all_to_all(self, parts: Sequence[Tensor], counts: Sequence[int]) -> Callable[[], Tensor]:
        coming = [sent[self.rank] for sent in self._exchange(list(parts))]
        assert [x.numel() for x in coming] == list(counts)
        return lambda: torch.cat(coming)


def on_ranks(ranks: int, run: Callable[[ThreadFabric], T]) -> list[T]:
    """Return what `run` returns on each of `ranks` ranks; the first failure is raised."""
    board = Board(ranks)

    def guarded(rank: int) -> T:
        try:
            return run(ThreadFabric(rank, ranks, board))
        except BaseException:
            board.barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        futures = [pool.submit(guarded, rank) for rank in range(ranks)]
        errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
