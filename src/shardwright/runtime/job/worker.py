"""The devices and processes of a run: what torchrun says of this process, joining the others, waiting for them."""

from __future__ import annotations

import datetime
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from math import inf
from typing import Any

import torch
import torch.distributed as dist

from shardwright.discovery.discover import answer
from shardwright.discovery.sources import nvlink_gb_per_second
from shardwright.errors import SpecError, bad
from shardwright.records import record
from shardwright.runtime.job.ending import BAD_INPUT
from shardwright.runtime.job.seats import DeviceReport, seats
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.layout.groups import Layout
from shardwright.spec.catalog.gpus import known_gpu
from shardwright.units import GIGA

KIBIBYTE, FAREWELL_SECONDS = 1024, 5.0

POLL_SECONDS = 0.05


@record
class Worker:
    """One process of the run."""

    rank: int
    world_size: int
    device: torch.device


def limit_of(settings: Settings) -> datetime.timedelta:
    """Return the time limit of the messages of a step."""
    return datetime.timedelta(seconds=max(4 * settings.patience_seconds, 60.0))


def join(settings: Settings, layout: Layout, report: Callable[[torch.device], DeviceReport] | None = None) -> Worker:
    """Join the other processes as the rank whose GPU this process has (`seats`).

    `report` says what a device is, if not the device itself. Raises SpecError where there are more or fewer processes
    than the plan needs, or other GPUs.
    """
    number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size != layout.world_size:
        message = f"the plan needs {layout.world_size} processes, torchrun started {size}"
        raise _told_once(
            number, bad("torchrun", message, f"start {layout.world_size} in all: nodes times processes of each")
        )
    torch.set_num_threads(max(int(os.environ.get("OMP_NUM_THREADS", "1")), 1))
    device = torch.device("cpu")
    if settings.device == "cuda":
        device = _own_gpu(int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    patience = limit_of(settings)
    distributed: Any = dist
    store, _, _ = next(distributed.rendezvous("env://", timeout=patience))
    store.set(f"device/{number}", json.dumps(asdict((report or device_report)(device))))
    reports = [DeviceReport(**json.loads(store.get(f"device/{other}"))) for other in range(size)]
    try:
        rank = seats(layout, reports)[number]
    except SpecError as error:
        raise _told_once(number, error) from None
    group_of_all(distributed.PrefixStore("seated", store), rank, size, device, patience)
    return Worker(rank=rank, world_size=size, device=device)


def group_of_all(store: Any, rank: int, size: int, device: torch.device, limit: datetime.timedelta) -> None:
    """Make the group of all ranks, which meet at a store."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    bound = device if device.type == "cuda" else None  # NCCL then connects at once, on the right device
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit, device_id=bound)


def _own_gpu(place: int) -> torch.device:
    """Return the GPU of a process by its place on this machine. Raises SpecError where there are fewer."""
    count = torch.cuda.device_count()
    if place >= count:
        message = f"process {place} of {socket.gethostname()} has no GPU: it sees {count}"
        hint = "start as many processes as there are GPUs; where each sees its own alone, set LOCAL_RANK=0"
        raise _told_once(place - count, bad("torchrun", message, hint))
    return torch.device("cuda", place)


def device_report(device: torch.device) -> DeviceReport:
    machine = socket.gethostname()
    if device.type != "cuda":
        return DeviceReport(machine=machine, device="CPU", gpu=None, memory_bytes=0.0, cpu=True)
    properties = torch.cuda.get_device_properties(device)
    name = str(properties.name)
    gpu = known_gpu(name)
    nvlink = nvlink_gb_per_second(answer)
    return DeviceReport(
        machine=machine,
        device=name,
        gpu=gpu.name if gpu else None,
        memory_bytes=float(properties.total_memory),
        nvlink_bytes_per_second=None if nvlink is None else nvlink * GIGA,
    )


def _told_once(number: int, error: SpecError) -> BaseException:
    """Return what to raise for what all processes find: the first one tells it, the others wait to be ended."""
    if not number:
        return error
    time.sleep(FAREWELL_SECONDS)
    return SystemExit(BAD_INPUT)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory that tensors took on a GPU, or the process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else KIBIBYTE
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def meet(store: Any, where: str, ranks: int, seconds: float = inf) -> int:
    """Wait until all ranks are there, or for so many seconds; return as which of them this one came, from 1."""
    place: int = store.add(where, 1)
    end = time.monotonic() + seconds
    while store.add(where, 0) < ranks and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    return place
