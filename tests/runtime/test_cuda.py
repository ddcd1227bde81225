"""What only a GPU shows: the same losses as on a CPU, compiled layers, kernels for windows, no wait within a step, NCCL.

Without a GPU all are skipped; `make gpu` runs them first.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests.rehearsal.tiny import tiny_plan
from tests.runtime.equal import ADAM
from tests.runtime.reference import reference_run
from tests.runtime.samples import plan_of, replica, stage, tiny_model
from tests.runtime.workers import batch_of

from shardwright.plans.plan import Plan
from shardwright.rehearsal.inside.guard import PINNED
from shardwright.rehearsal.rehearse import asked, ranks_of
from shardwright.rehearsal.trainers import question_of
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model.attention import Documents, masked_attention
from shardwright.runtime.model.blocks import LayerForward, compiled, layer_forward
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import seeded
from shardwright.runtime.step.engine import Engine, make_engine, train_step
from shardwright.spec.job import Precision

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(not GPUS, reason="there is no GPU")
IN_FP8 = pytest.mark.skipif(not GPUS or torch.cuda.get_device_capability() < (8, 9), reason="the GPU has no fp8")
# Elsewhere PyTorch 2.13 multiplies expert by expert, and reads on the host where each begins.
GROUPED = pytest.mark.skipif(
    not GPUS or torch.cuda.get_device_capability()[0] not in (9, 10),
    reason="PyTorch has no grouped product for the GPU",
)
WORK_SPACE_BYTES = (
    2 * 32 << 20
)  # of cuBLAS and cuBLASLt on Hopper (aten/src/ATen/cuda/CublasHandlePool.cpp), from the allocator
SMALL = plan_of(tiny_model(3), replica(stage((0, 3)), micro_batches=2))
PAIR = plan_of(tiny_model(4), replica(stage((0, 2)), stage((2, 4)), micro_batches=4))


def engine_of(plan: Plan, rank: int, precision: Precision = "fp32", layer: LayerForward = layer_forward) -> Engine:
    layout, device = layout_of(plan), torch.device("cuda", rank)
    torch.cuda.set_device(device)
    return make_engine(
        layout, rank, make_process_groups(layout, rank), details=Details(), recipe=ADAM,
        initial=seeded(plan.model, 7), precision=precision, device=device, layer=layer,
    )  # fmt: skip


def losses(engine: Engine, steps: int = 5) -> list[float]:
    found = []
    for step in range(steps):
        batch = batch_of(engine, step)
        rows = [tuple(part.cuda() for part in batch(number)) for number in range(engine.place.micro_batches)]
        found.append(train_step(engine, lambda number, rows=rows: rows[number], step).loss)
    return found


@contextmanager
def no_waits() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("precision", "close"), [("fp32", 1e-4), ("bf16", 1e-2), pytest.param("fp8", 2e-2, marks=IN_FP8)]
)
@pytest.mark.parametrize("fast", [False, True])
def test_a_gpu_trains_as_one_process_on_a_cpu_does(precision: Precision, close: float, fast: bool) -> None:
    expected = reference_run(SMALL, ADAM, steps=5, seed=7).losses
    found = losses(engine_of(SMALL, 0, precision, compiled() if fast else layer_forward))
    assert found == pytest.approx(expected, rel=close)


@pytest.mark.parametrize("masked", [False, True])
def test_masks_have_a_kernel_that_computes_the_same(masked: bool) -> None:
    query, key, value = (torch.randn(2, heads, 256, 64, device="cuda") for heads in (4, 2, 2))
    numbers = torch.arange(512, device="cuda").view(2, 256) // 40
    there, here = (Documents(numbers=x) if masked else None for x in (numbers, numbers.cpu()))
    expected = masked_attention(query.cpu(), key.cpu(), value.cpu(), 100, here)
    found = masked_attention(query, key, value, 100, there)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("experts", [0, pytest.param(4, marks=GROUPED)])
def test_no_wait_for_the_device_up_to_the_end_of_a_step(experts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(2, family="qwen2", experts=experts, shared=True) if experts else tiny_model(2)
    engine = engine_of(plan_of(model, replica(stage((0, 2)), micro_batches=2)), 0, "bf16")
    losses(engine, 2)  # kernels are chosen
    real = torch.Tensor.tolist

    def read(tensor: Any) -> Any:
        torch.cuda.set_sync_debug_mode("default")
        return real(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", read)
    rows = [tuple(part.cuda() for part in batch_of(engine, 2)(number)) for number in range(2)]
    with no_waits():
        train_step(engine, lambda number: rows[number], 2)


@pytest.mark.skipif(not torch.__version__.startswith(f"{PINNED}."), reason=f"rehearsals are of PyTorch {PINNED}")
def test_a_rank_of_a_plan_for_eight_takes_what_its_rehearsal_counts() -> None:
    plan = tiny_plan("train", "tp=2 pp=4 vpp=1 micro_batch=1 recompute=none")
    question = question_of(plan, "train", ranks_of(plan)[0])
    rehearsed, there = (
        asked(question | {"on_gpu": on_gpu}, python=None, seconds=300.0, limit_bytes=8e9) for on_gpu in (False, True)
    )
    beside = there["allocated_bytes"] - rehearsed["peak_bytes"] - rehearsed["rounding_bytes"]
    assert 0 <= beside <= WORK_SPACE_BYTES and there["reserved_bytes"] >= there["allocated_bytes"]


@pytest.mark.skipif(GPUS < 2, reason="there are not two GPUs")
def test_two_gpus_train_over_nccl_as_one_process_does() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    queue: Any = mp.get_context("spawn").SimpleQueue()
    spawn: Any = mp.spawn  # type: ignore[attr-defined]
    spawn(_over_nccl, args=(port, queue), nprocs=2)
    assert queue.get() == pytest.approx(reference_run(PAIR, ADAM, steps=5, seed=7).losses, rel=1e-4)


def _over_nccl(rank: int, port: int, queue: Any) -> None:
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    dist.init_process_group("nccl", rank=rank, world_size=2, device_id=torch.device("cuda", rank))
    found = losses(engine_of(PAIR, rank))
    if rank == 0:
        queue.put(found)
    dist.destroy_process_group()
