"""Processes, models and plans for the benchmarks of the runtime, on CPUs with gloo. Needs PyTorch."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
except ImportError:
    raise SystemExit(0) from None  # nothing to run without PyTorch

from shardwright import Cluster, Job, Model
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import seeded
from shardwright.runtime.state.recipe import Recipe
from shardwright.runtime.step.engine import Engine, make_engine, train_step
from shardwright.runtime.step.pipeline import Batch
from shardwright.spec.read.cluster import build_cluster
from shardwright.spec.read.model_yaml import model_of_dimensions

RECIPE = Recipe(learning_rate=1e-3)
Step = Callable[[], float]
"""Runs a step and returns its loss."""


def llama(hidden: int, layers: int, vocab: int) -> Model:
    """Return a small Llama."""
    sizes = {"hidden": hidden, "layers": layers, "heads": hidden // 64, "vocab": vocab, "ffn": hidden * 11 // 4}
    return model_of_dimensions({"name": f"llama-{hidden}x{layers}", **sizes}, "benchmark")


def cpu_cluster(**counts: int) -> Cluster:
    """Return a cluster of processes, a type of GPU for each name."""
    gpu = {"memory_gb": 8, "memory_gb_per_second": 10, "fp32_tflops": 0.05, "bf16_tflops": 0.05}
    nodes = [{"count": 1, "gpus": count, "gpu": {"name": name, **gpu}} for name, count in counts.items()]
    return build_cluster({"name": "processes", "nodes": nodes}, "benchmark")


def stage(gpu: str, *layers: tuple[int, int]) -> Stage:
    """Return a stage of one process."""
    return Stage(
        gpu=gpu, tensor_parallel=1, context_parallel=1, expert_parallel=1, expert_tensor_parallel=1, layers=layers,
        recompute=Recompute(),
    )  # fmt: skip


def plan_of(model: Model, cluster: Cluster, seq_len: int, *replicas: Replica, micro_batch: int) -> Plan:
    """Return a plan in fp32 without sharding."""
    samples = micro_batch * sum(replica.count * replica.micro_batches for replica in replicas)
    return Plan(
        model=model,
        job=Job(global_batch=samples, seq_len=seq_len, precision="fp32"),
        cluster=cluster,
        micro_batch=micro_batch,
        schedule=Schedule(),
        replicas=replicas,
        optimizer=OptimizerPlan(),
        overlap=Overlap(grad_reduce=True),
        sequence_parallel=False,
        flash_attention=True,
    )


def engine_of(plan: Plan, rank: int) -> Engine:
    """Return the engine of a rank; every process must call it, also those that the plan does not use."""
    layout = layout_of(plan)
    groups = make_process_groups(layout, rank)
    return make_engine(
        layout, rank, groups, details=Details(), recipe=RECIPE, initial=seeded(plan.model, 0),
        precision="fp32",
        device=torch.device("cpu"),
    )  # fmt: skip


def batch_of(plan: Plan, first_sample: int) -> Batch:
    """Return the micro-batches of a copy: random tokens, the same for the same samples."""

    def batch(micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(first_sample + micro_batch * plan.micro_batch)
        shape = (plan.micro_batch, plan.job.seq_len + 1)
        rows = torch.randint(plan.model.vocab, shape, generator=generator)
        return rows[:, :-1], rows[:, 1:]

    return batch


def planned(plan: Plan, rank: int) -> Step:
    """Return a step of the runtime."""
    engine, done = engine_of(plan, rank), [0]
    batch = batch_of(plan, engine.place.first_sample)

    def step() -> float:
        done[0] += 1
        return train_step(engine, batch, done[0] - 1).loss

    return step


def run_workers(processes: int, work: Callable[..., Any], *arguments: object) -> list[Any]:
    """Run `work(rank, *arguments)` in so many processes joined by gloo, and return what each returned."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    queue: Any = context.SimpleQueue()
    running: Any = mp.spawn(_work, args=(processes, port, queue, work, arguments), nprocs=processes, join=False)
    while not running.join():  # raises where one of them failed
        pass
    found: dict[int, Any] = dict(queue.get() for _ in range(processes))  # small enough for the pipe to hold
    return [found[rank] for rank in range(processes)]


def _work(rank: int, processes: int, port: int, queue: Any, work: Callable[..., Any], arguments: Sequence[Any]) -> None:
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=processes)
    queue.put((rank, work(rank, *arguments)))
    dist.barrier()
    dist.destroy_process_group()
