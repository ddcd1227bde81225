"""What torch.distributed.pipelining, which torchtitan runs, keeps of messages between stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwright.cost.iteration.moments import message_buffers
from shardwright.cost.pipeline.in_flight import most_live
from shardwright.cost.strategies import strategies
from shardwright.spec.job import Job

WIDTH = 8
MESSAGE = 4.0 * WIDTH  # of one sample


@contextmanager
def alone(rank: int, ranks: int) -> Iterator[None]:
    """Be one rank of a group whose others send nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Stage(PipelineStage):
    """A stage that takes messages to be as it is told, where others cannot tell."""

    def _warmup_forward_vote(self, *_: Any, **__: Any) -> torch.Tensor:
        return torch.ones(())

    _warmup_backward_result = _warmup_forward_vote


class Scaled(torch.nn.Module):
    """Keeps its input for the backward pass, and not what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def messages_held(ranks: int, chunks: int, rank: int, micro_batches: int) -> int:
    """Return the most different tensors of a message that the stages of a rank hold at a time in one step: what they
    receive, what they got, gave and handed back."""
    most, given = 0, torch.randn(1, WIDTH)
    stages: list[Any] = [
        Stage(
            Scaled(), rank + chunk * ranks, ranks * chunks, torch.device("cpu"),
            input_args=given.clone().requires_grad_(bool(rank + chunk)), output_args=given.clone().requires_grad_(),
        )
        for chunk in range(chunks)
    ]  # fmt: skip

    def look(stage: Any) -> None:
        nonlocal most
        held = {info.buffer for one in stages for row in one.args_recv_info.values() for info in row}
        held |= {info.buffer for one in stages for row in one.grad_recv_info.values() for info in row}
        for one in stages:
            for outputs, _ in one.fwd_cache.values():
                held |= set(outputs) if not one.is_last else set()
        held.discard(None)
        most = max(most, len({tensor.untyped_storage().data_ptr() for tensor in held}))

    for stage in stages:
        forward = stage.forward_one_chunk

        def looked(*args: Any, forward: Any = forward, stage: Any = stage, **kwargs: Any) -> Any:
            given = forward(*args, **kwargs)
            look(stage)
            return given

        stage.forward_one_chunk = looked
    single = chunks == 1
    schedule: Any = (Schedule1F1B if single else ScheduleInterleaved1F1B)(
        stages[0] if single else stages, n_microbatches=micro_batches, loss_fn=lambda out, target: (out - target).sum()
    )
    whole = torch.randn(micro_batches, WIDTH)
    schedule.step(*([whole] if rank == 0 else []), target=whole if rank == ranks - 1 else None)
    return most


@pytest.mark.parametrize(
    ("ranks", "chunks", "rank", "micro_batches"),
    [(2, 1, 0, 4), (2, 1, 1, 4), (4, 1, 1, 8), (4, 1, 3, 4), (2, 2, 0, 4), (2, 2, 1, 6), (4, 3, 2, 8), (4, 2, 3, 4)],
)
def test_every_micro_batch_has_memory_for_what_a_stage_receives(
    ranks: int, chunks: int, rank: int, micro_batches: int
) -> None:
    with alone(rank, ranks):
        held = messages_held(ranks, chunks, rank, micro_batches)
    rows = strategies([{"pp": ranks, "vpp": chunks}])
    count, stage = np.array([micro_batches]), np.arange(ranks * chunks).reshape(chunks, ranks)
    job = Job(global_batch=micro_batches, seq_len=1, framework="torchtitan")
    buffers = message_buffers(job, rows, np.full((1, 1), MESSAGE), count)[0, rank] / MESSAGE
    handed_back = chunks == 1 and rank > 0  # which is no stage's any more, but the schedule's
    outputs = most_live((stage < ranks * chunks - 1).astype(float)[None], count)[0, rank]
    assert held == buffers - handed_back + outputs
