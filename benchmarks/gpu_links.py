"""The bandwidth of an all-reduce over the GPUs of this machine by NCCL, for `gpu.py`; without GPUs over two processes
by gloo. Needs PyTorch."""

from __future__ import annotations

import datetime
import os
import socket
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = (1 << 20, 1 << 26, 1 << 29)  # bytes
PROCESSES_WITHOUT_GPU, REPEATS, PATIENCE = 2, 5, datetime.timedelta(seconds=60)


def main(backend: str) -> None:
    """Print the bandwidth for each size."""
    ranks = torch.cuda.device_count() if backend == "cuda" else PROCESSES_WITHOUT_GPU
    if ranks < 2:
        print("links: a single GPU has none to others")
        return
    with socket.socket() as free:
        free.bind(("localhost", 0))
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1])}
    mp.spawn(_work, args=(ranks, backend), nprocs=ranks)  # type: ignore[no-untyped-call]


def _work(rank: int, ranks: int, backend: str) -> None:
    device = torch.device("cuda", rank) if backend == "cuda" else torch.device("cpu")
    bound: Any = device if backend == "cuda" else None
    if backend == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if backend == "cuda" else "gloo", rank=rank, world_size=ranks, timeout=PATIENCE, device_id=bound
    )
    for size in SIZES if backend == "cuda" else SIZES[:2]:
        values = torch.ones(size // 4, device=device)
        seconds = statistics.median([_once(values, device) for _ in range(REPEATS)])
        if rank == 0:
            bus = 2 * (ranks - 1) / ranks * size / seconds  # as nccl-tests counts it
            figures = f"{seconds * 1e3:8.3f} ms, {bus / 1e9:7.2f} GB/s a link"
            print(f"all-reduce of {size / 1e6:7.1f} MB over {ranks}: {figures}")
    dist.destroy_process_group()


def _once(values: torch.Tensor, device: torch.device) -> float:
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(values)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main(sys.argv[1])
