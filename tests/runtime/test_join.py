"""Processes that arrive in another order than the plan's join as the ranks whose GPUs they have."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests import forked
from tests.golden.plans import cluster_of
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright import Cluster, SpecError
from shardwright.runtime.job.seats import DeviceReport
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.worker import join
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.state.recipe import Recipe
from shardwright.spec.catalog.gpus import gpus

A100, H100 = gpus()["A100-SXM-80"], gpus()["H100-SXM"]


def joined(queue: Any, number: int, port: int, types: list[str], folder: str) -> None:
    """Process `number` has a GPU of `types[number]`; the plan wants an H100, then an A100."""
    os.environ.update(RANK=str(number), WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT=str(port))
    (pool,) = cluster_of(1).pools
    cluster = Cluster(pools=(replace(pool, gpu=H100), replace(pool, gpu=A100)), name="mixed")
    stages = (stage((0, 2), gpu=H100.name), stage((2, 4), gpu=A100.name))
    layout = layout_of(plan_of(tiny_model(4), replica(*stages, micro_batches=2), cluster=cluster))
    settings = Settings(data=(), out=Path(folder), steps=1, recipe=Recipe())
    report = DeviceReport(machine=f"m{number}", device="GPU", gpu=types[number], memory_bytes=84e9)
    try:
        worker = join(settings, layout, lambda _: report)
    except SpecError as error:
        queue.put((number, str(error)))
        return
    value = torch.full((1,), float(worker.rank))
    dist.broadcast(value, src=1)
    queue.put((number, (worker.rank, layout.places[worker.rank].gpu, value.item())))
    dist.barrier()
    dist.destroy_process_group()


def test_a_process_without_a_gpu_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "2", "WORLD_SIZE": "1", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    layout = layout_of(plan_of(tiny_model(2), replica(stage((0, 2)), micro_batches=1)))
    settings = Settings(data=(), out=tmp_path, steps=1, recipe=Recipe(), device="cuda")
    with pytest.raises(SpecError, match=r"process 2 of .* has no GPU: it sees 2"):
        join(settings, layout)


@pytest.mark.parametrize("types", [[A100.name, H100.name], [A100.name, A100.name]], ids=["swapped", "wrong"])
def test_the_machine_with_the_gpu_takes_the_place(types: list[str], tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    context = forked.context()
    queue: Any = context.SimpleQueue()
    running = [context.Process(target=joined, args=(queue, n, port, types, str(tmp_path))) for n in range(2)]
    for process in running:
        process.start()
    if types[0] == types[1]:
        number, message = queue.get()
        assert number == 0 and "m0 has 1 x A100-SXM-80; m1 has 1 x A100-SXM-80" in message
        running[1].kill()
    else:
        found = dict(queue.get() for _ in running)
        assert found == {0: (1, A100.name, 1.0), 1: (0, H100.name, 1.0)}
    for process in running:
        process.join(60)
