"""The devices and processes of a run: what torchrun says of this process, and joining with the others."""

from __future__ import annotations

import datetime
import os
import resource
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shardwright.errors import bad
from shardwright.runtime.job.settings import Settings

KIBIBYTE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One process of the run."""

    rank: int
    world_size: int
    device: torch.device


def join(settings: Settings, expected: int) -> Worker:
    """Join the other processes. Raises SpecError where there are more or fewer than the plan needs."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size != expected:
        message = f"the plan needs {expected} processes, torchrun started {size}"
        if rank:  # rank 0 says it
            raise SystemExit(2)
        raise bad("torchrun", message, f"start {expected} in all: nodes times processes of each")
    torch.set_num_threads(max(int(os.environ.get("OMP_NUM_THREADS", "1")), 1))
    device = torch.device("cpu")
    if settings.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    patience = datetime.timedelta(seconds=max(4 * settings.patience_seconds, 60.0))
    dist.init_process_group("nccl" if settings.device == "cuda" else "gloo", timeout=patience)
    return Worker(rank=rank, world_size=size, device=device)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory that tensors took on a GPU, or the process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else KIBIBYTE
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
