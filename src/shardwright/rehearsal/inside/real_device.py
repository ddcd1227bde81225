"""Runs a runner's step on the GPU of this machine: one rank of as many as the plan has. Its process group is a fake
one, whose collectives move nothing and leave what they should fill as it was, so losses mean nothing; but every tensor
is there, in PyTorch's own allocator, which is asked for its peaks.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwright.rehearsal.inside.fake_device import Runner, install_groups
from shardwright.rehearsal.inside.guard import Refused
from shardwright.rehearsal.inside.meter import Meter


class Allocator(Meter):
    """In the place of the meter, which is not entered: a step begins with the allocator's peaks forgotten."""

    started = 0.0

    def begin_step(self) -> None:
        super().begin_step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.started = time.perf_counter()


def measured(question: dict[str, Any], runner: Runner) -> dict[str, Any]:
    """Return what the last step took of the GPU: bytes of tensors at their peak (`allocated_bytes`), of what PyTorch
    had from the driver (`reserved_bytes`), of all that the driver has given out (`used_bytes`, other programs'
    too), and seconds. Where memory ends, `exhausted` says so, beside what was allocated by then. Raises Refused
    without a GPU."""
    if not torch.cuda.is_available():
        raise Refused("GPU", "PyTorch finds none on this machine", "run it where there is one, or without `on_gpu`")
    allocator, exhausted = Allocator(), False
    install_groups()
    dist.init_process_group(
        "fake", store=FakeStore(), rank=int(question["rank"]), world_size=int(question["world_size"])
    )
    try:
        runner(question, allocator)
    except torch.OutOfMemoryError:
        exhausted = True
    else:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - allocator.started
    free, total = torch.cuda.mem_get_info()
    return {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "exhausted": exhausted,
        "allocated_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved(),
        "used_bytes": total - free, "step_seconds": seconds,
    }  # fmt: skip
