"""What the runtime costs over plain PyTorch: the same layers and the same update, on two processes with gloo.

    python benchmarks/runtime_overheads.py

A pipeline of two stages runs once as a plan and once under torch.distributed.pipelining's Schedule1F1B; two copies of
the model run once as a plan and once under DistributedDataParallel. The layers are the same functions, the update is
AdamW after clipping by the global norm. Steps of the two alternate in the same processes, so that what else the machine
does meets both alike. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.nn.parallel import DistributedDataParallel
except ImportError:
    raise SystemExit(0) from None  # nothing to run without PyTorch

from runtime_workers import (
    RECIPE,
    Step,
    batch_of,
    cpu_cluster,
    engine_of,
    llama,
    plan_of,
    planned,
    run_workers,
    stage,
)  # fmt: skip

from shardwright.plans.plan import Plan, Replica
from shardwright.runtime.model.chunk import forward, loss_of
from shardwright.runtime.step.engine import Engine

HIDDEN, LAYERS, VOCAB, SEQ_LEN, MICRO_BATCH, MICRO_BATCHES = 256, 4, 1024, 128, 4, 4
WARM_UP = 2
"""Runs a step and returns its loss, on one rank at least."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15, help="steps of either kind")
    options = parser.parse_args()
    print(f"{'':34} {'plan':>10} {'plain':>10} {'plan/plain':>11}   loss of the last step")
    for name, (plan, plain) in CASES.items():
        both = run_workers(2, compared, plan, plain, options.pairs)
        seconds, others, losses = both[0]
        ratio = statistics.median(ours / theirs for ours, theirs in zip(seconds, others, strict=True))
        ours, theirs = statistics.median(seconds), statistics.median(others)
        words = " and ".join(f"{max(rank[2][kind] for rank in both):.5f}" for kind in range(len(losses)))
        print(f"{name:34} {ours * 1e3:7.1f} ms {theirs * 1e3:7.1f} ms {ratio:11.3f}   {words}")


def compared(rank: int, plan: Plan, plain: Callable[[Engine, int], Step], pairs: int) -> tuple[Any, ...]:
    """Return the seconds of steps under the plan and of plain ones, in turn, and the last losses."""
    steps = (planned(plan, rank), plain(engine_of(plan, rank), rank))
    seconds: tuple[list[float], list[float]] = ([], [])
    losses = [0.0, 0.0]
    for number in range(WARM_UP + pairs):
        for kind in (0, 1) if number % 2 else (1, 0):
            dist.barrier()
            begin = time.perf_counter()
            losses[kind] = steps[kind]()
            dist.barrier()
            if number >= WARM_UP:
                seconds[kind].append(time.perf_counter() - begin)
    return *seconds, losses


def pipelined(engine: Engine, rank: int) -> Step:
    """Return a step under torch.distributed.pipelining with the same stages."""
    plan = engine.layout.plan
    body = Body(engine)
    stage_of = PipelineStage(body, rank, 2, torch.device("cpu"))
    tokens_of_a_step = plan.job.tokens_per_iteration

    def share(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss_of(body.chunk, x, targets) / tokens_of_a_step

    schedule = Schedule1F1B(stage_of, MICRO_BATCHES, loss_fn=share, scale_grads=False)
    optimizer = adamw(dict(body.named_parameters()))
    batch = batch_of(plan, 0)

    def step() -> float:
        rows = [batch(number) for number in range(MICRO_BATCHES)]
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(torch.cat([tokens for tokens, _ in rows]))
        else:
            schedule.step(target=torch.cat([targets for _, targets in rows]), losses=losses)
        own = torch.stack([p.grad.square().sum() for p in body.parameters() if p.grad is not None]).sum()
        both = torch.stack([own, torch.stack(losses).sum().detach() if losses else torch.zeros(())])
        dist.all_reduce(both)  # the global norm, and the loss, as the runtime reports it to all ranks
        update(body, optimizer, both[0].sqrt())
        return float(both[1])

    return step


def replicated(engine: Engine, rank: int) -> Step:
    """Return a step under DistributedDataParallel, gradients accumulated over the micro-batches."""
    plan = engine.layout.plan
    body = Body(engine)
    model = DistributedDataParallel(body)
    optimizer = adamw(dict(body.named_parameters()))
    batch = batch_of(plan, engine.place.first_sample)

    def step() -> float:
        total = torch.zeros(())
        for number in range(MICRO_BATCHES):
            tokens, targets = batch(number)
            with model.no_sync() if number < MICRO_BATCHES - 1 else contextlib.nullcontext():
                loss = loss_of(body.chunk, model(tokens), targets) * 2 / plan.job.tokens_per_iteration
                loss.backward()
            total += loss.detach()
        dist.all_reduce(total)
        own = torch.stack([p.grad.square().sum() for p in body.parameters() if p.grad is not None]).sum()
        update(body, optimizer, own.sqrt())
        return float(total) / 2

    return step


class Body(torch.nn.Module):
    """The chunk of a rank as a module: its parameters, and logits in place of the loss."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        (chunk,) = engine.pipeline.chunks
        self.named = {name: torch.nn.Parameter(value.detach().clone()) for name, value in chunk.weights.items()}
        for name, value in self.named.items():
            self.register_parameter(name.replace(".", "_"), value)
        self.chunk = replace(chunk, weights=self.named)
        head = len(chunk.model.layers) + 1
        self.before_head = replace(self.chunk, units=tuple(unit for unit in chunk.units if unit != head))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return forward(self.before_head, x)


def adamw(weights: Mapping[str, torch.Tensor]) -> torch.optim.Optimizer:
    """Return torch's AdamW, with decay on matrices alone."""
    decayed = [weight for weight in weights.values() if weight.dim() > 1]
    plain = [weight for weight in weights.values() if weight.dim() == 1]
    groups = [{"params": decayed, "weight_decay": RECIPE.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RECIPE.learning_rate, betas=RECIPE.betas, eps=RECIPE.epsilon)


def update(body: torch.nn.Module, optimizer: torch.optim.Optimizer, norm: torch.Tensor) -> None:
    torch.nn.utils.clip_grads_with_norm_(body.parameters(), RECIPE.clip, norm)
    optimizer.step()
    optimizer.zero_grad()


MODEL, CLUSTER = llama(HIDDEN, LAYERS, VOCAB), cpu_cluster(core=2)
CUT = LAYERS // 2
PIPELINE = Replica(count=1, micro_batches=MICRO_BATCHES, stages=(stage("core", (0, CUT)), stage("core", (CUT, LAYERS))))
COPIES = Replica(count=2, micro_batches=MICRO_BATCHES, stages=(stage("core", (0, LAYERS)),))
CASES = {
    "pipeline of 2, against pipelining": (
        plan_of(MODEL, CLUSTER, SEQ_LEN, PIPELINE, micro_batch=MICRO_BATCH), pipelined,
    ),
    "2 copies, against DDP": (plan_of(MODEL, CLUSTER, SEQ_LEN, COPIES, micro_batch=MICRO_BATCH), replicated),
}  # fmt: skip

if __name__ == "__main__":
    main()
