"""A rank that cannot go on says whether others are lost, or it has failed by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests import forked
from tests.runtime.workers import join_pair

from shardwright.runtime.job.watchdog import fault_of, lost_others

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
OWN: dict[str, Exception] = {
    "memory": FULL,
    "device": torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    "assertion": AssertionError("experts get other rows than they were sent"),
    "data": ValueError("token 70,000 is not in the vocabulary"),
    "shapes": RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x8 and 4x8)"),
}


def raised(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    return caught.value


def throw(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("name", OWN)
def test_own_faults_are_nobody_elses(name: str) -> None:
    error = raised(lambda: throw(OWN[name]))
    assert not lost_others(error)
    assert str(OWN[name])[:40] in fault_of(error) and "test_own_faults.py:" in fault_of(error)


def test_memory_that_is_full_in_a_collective_is_an_own_fault_too() -> None:
    class Work:
        def wait(self) -> None:
            raise FULL

    assert not lost_others(raised(lambda: Work().wait()))


@pytest.mark.parametrize("blocked", [True, False], ids=["in a collective", "in a wait"])
def test_a_neighbour_that_dies_is_lost(tmp_path: Path, *, blocked: bool) -> None:
    """By what gloo raises, which is a plain RuntimeError."""
    peer = forked.context().Process(target=_joined, args=(str(tmp_path / "store"), 1), daemon=True)
    peer.start()
    try:
        join_pair(str(tmp_path / "store"), 0)
        threading.Timer(0.2, peer.kill).start()
        error = raised(_call if blocked else _wait)
        assert type(error) is RuntimeError or isinstance(error, dist.DistError)
        assert lost_others(error)
    finally:
        peer.kill()
        dist.destroy_process_group()


def _call() -> None:
    dist.all_reduce(torch.ones(1 << 20))


def _wait() -> None:
    work: Any = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    work.wait()


def _joined(path: str, rank: int) -> None:
    join_pair(path, rank)
    threading.Event().wait()
