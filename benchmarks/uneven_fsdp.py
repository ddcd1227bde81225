"""Uneven FSDP on processes of unequal speed, against PyTorch's DDP and FSDP2 and against its prediction.

    python benchmarks/uneven_fsdp.py

Two processes run fast, two slowly: each works for the share of the time that its duty cycle allows, unit by unit, and
sleeps for the rest. Communication, which runs beside the sleep too, is not slowed down. A first run of equal copies
measures every layer; the shares are planned from that profile alone. Then steps of uneven FSDP, of the same trainer
with even shares, of DDP and of FSDP2 (`fully_shard`, layer by layer) take turns in the same processes: the same model,
loss and optimizer, rows one at a time. DDP reduces beside the last backward pass, FSDP2 gathers for every row, as it
does under accumulation. Last, the most that the tensors of each rank take at a time, for a larger model that is not
slowed down. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

try:
    import torch
    import torch.distributed as dist
except ImportError:
    raise SystemExit(0) from None  # nothing to run without PyTorch

from runtime_unequal import alternate
from runtime_workers import batch_of, cpu_cluster, engine_of, llama, plan_of, run_workers, stage
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from shardwright.cost.layers.measured import measured_layers
from shardwright.cost.learned import default_efficiency
from shardwright.cost.predict import predict
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule
from shardwright.runtime.model.chunk import Chunk, loss_of, table_of, unit_forward
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import initial_values
from shardwright.runtime.model.parallel import TensorGroup
from shardwright.runtime.model.parameters import unit_parameters
from shardwright.runtime.step.engine import Engine, train_step
from shardwright.runtime.timing.layer_profile import profile_document
from shardwright.search.planner import plan as search
from shardwright.search.space.axes import parse_pins
from shardwright.spec.cluster import Cluster
from shardwright.spec.read.layer_profile import layer_profile

MODEL, SEQ_LEN = llama(256, 4, 1024), 64
PROCESSES = {"fast": 2, "slow": 2}


class Throttle:
    """Lets a rank compute for a part `duty` of the time: `start` when it begins, `pay` when it has computed."""

    def __init__(self, duty: float) -> None:
        self.duty = duty
        self.start()

    def start(self) -> None:
        self.began, self.used = time.perf_counter(), time.thread_time()

    def pay(self) -> None:
        due = self.began + (time.thread_time() - self.used) / self.duty
        time.sleep(max(due - time.perf_counter(), 0.0))
        self.start()


class Unit(torch.nn.Module):
    """One unit of the model for PyTorch's own wrappers; what it computes is the trainer's."""

    def __init__(self, unit: int, throttle: Throttle) -> None:
        super().__init__()
        self.unit, self.throttle = unit, throttle
        parameters = unit_parameters(MODEL, unit, MODEL.vocab)
        self.names = [parameter.name for parameter in parameters]
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(initial_values(each, 0)) for each in parameters])
        self.table = table_of(MODEL, Details(), torch.arange(SEQ_LEN))

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        chunk = Chunk(
            units=(self.unit,), weights=dict(zip(self.names, self.weights, strict=True)), model=MODEL,
            details=Details(), tensor=TensorGroup(), recompute=Recompute(), positions=torch.arange(SEQ_LEN),
            table=self.table,
        )  # fmt: skip
        self.throttle.start()
        out = unit_forward(chunk, self.unit, x) if targets is None else loss_of(chunk, x, targets)
        self.throttle.pay()
        if targets is None:
            out.register_hook(lambda _: self.throttle.pay())  # type: ignore[no-untyped-call]
        else:
            out.register_hook(lambda _: self.throttle.start())  # type: ignore[no-untyped-call]
        return out


class Llama(torch.nn.Module):
    """The units one after the other, to the summed loss."""

    def __init__(self, throttle: Throttle) -> None:
        super().__init__()
        self.units = torch.nn.ModuleList([Unit(unit, throttle) for unit in range(len(MODEL.layers) + 2)])

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = tokens
        for unit in self.units[:-1]:
            x = unit(x)
        loss: torch.Tensor = self.units[-1](x, targets)
        return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="steps of each")
    parser.add_argument("--duty", type=float, default=1 / 8, help="part of the time in which fast processes work")
    parser.add_argument("--times-slower", type=float, default=2.5, help="how much less the slow ones do")
    parser.add_argument("--batch", type=int, default=28, help="rows of a step")
    options = parser.parse_args()
    duties = {"fast": options.duty, "slow": options.duty / options.times_slower}
    cluster, each = cpu_cluster(**PROCESSES), options.batch // 4
    copies = plan_of(MODEL, cluster, SEQ_LEN, whole("fast", 2, each), whole("slow", 2, each), micro_batch=1)
    measured = [own for _, own in run_workers(4, alternate, [copies], duties, 3)]
    document = layer_profile(profile_document(copies, measured))
    profile = measured_layers(default_efficiency(), document, MODEL, cluster, copies.job)
    ranking = search(MODEL, cluster, copies.job, efficiency=profile, space=parse_pins(["sharding=zero3"]))
    _, uneven, even = (entry.plan for entry in ranking.kinds)
    assert uneven is not None and even is not None, "both fit"
    plans = [replace(each, prediction=predict(each, profile)) for each in (uneven, even)]
    show(plans, run_workers(4, take_turns, plans, duties, options.rounds))
    show_memory(cluster)


def take_turns(rank: int, plans: Sequence[Plan], duties: dict[str, float], rounds: int) -> dict[str, float]:
    """Return the median seconds of a step of each."""
    engines = [engine_of(plan, rank) for plan in plans]
    throttle = Throttle(duties[engines[0].place.gpu])
    steps: dict[str, Callable[[int], None]] = {
        "uneven FSDP": trainer(engines[0], throttle),
        "even FSDP": trainer(engines[1], throttle),
        "DDP": wrapped(rank, plans[0], throttle, sharded=False),
        "FSDP2": wrapped(rank, plans[0], throttle, sharded=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            dist.barrier()
            begin = time.perf_counter()
            step(number)
            dist.barrier()
            if number:
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}


def whole(gpu: str, count: int, rows: int) -> Replica:
    return Replica(count=count, micro_batches=rows, stages=(stage(gpu, (0, len(MODEL.layers))),))


def trainer(engine: Engine, throttle: Throttle) -> Callable[[int], None]:
    """Return a step of the trainer."""
    batch = batch_of(engine.layout.plan, engine.place.first_sample)

    def note(doing: str) -> None:
        if doing.startswith("computing"):
            throttle.start()

    def step(number: int) -> None:
        train_step(engine, batch, number, note=note, record=lambda _: throttle.pay())

    return step


def wrapped(rank: int, plan: Plan, throttle: Throttle, *, sharded: bool) -> Callable[[int], None]:
    """Return a step of PyTorch's own data parallelism, with even rows."""
    model, rows = Llama(throttle), plan.job.global_batch // dist.get_world_size()
    wrapper: Any
    if sharded:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for unit in model.units:
            fully_shard(unit, mesh=mesh)
        wrapper = fully_shard(model, mesh=mesh)
    else:
        wrapper = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapper.parameters(), lr=1e-3)
    batch = batch_of(plan, rank * rows)

    def step(number: int) -> None:
        for row in range(rows):
            last = row == rows - 1
            if sharded:
                wrapper.set_requires_gradient_sync(last)
            else:
                wrapper.require_backward_grad_sync = last
            loss = wrapper(*batch(row))
            (loss / plan.job.tokens_per_iteration).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def peak_bytes(rank: int, plan: Plan) -> float:
    """Return the most bytes that tensors of the trainer take at a time, from before there is an engine on."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        engine = engine_of(plan, rank)
        batch = batch_of(plan, engine.place.first_sample)
        for number in range(2):
            train_step(engine, batch, number)
    results: Any = profile.profiler
    changes = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return float(max(accumulate(event.nbytes() for event in changes)))


def shared(plan: Plan) -> str:
    """Return the shares of a plan in a line."""
    return ", ".join(
        f"{replica.count} x {replica.stages[0].gpu} {replica.rows} rows and "
        f"{(replica.state or 0) / (plan.optimizer.parts or 1):.3f} of the state"
        for replica in plan.replicas
    )


def show(plans: Sequence[Plan], seconds: Sequence[dict[str, float]]) -> None:
    """Print shares, measured and predicted seconds of a step."""
    medians = {name: max(own[name] for own in seconds) for name in seconds[0]}
    predicted = [plan.prediction.iteration_seconds for plan in plans if plan.prediction is not None]
    print(f"{'':12} {'measured':>9} {'predicted':>10} {'error':>7} {'over uneven FSDP':>17}")
    for name, guess in zip(medians, [*predicted, None, None], strict=True):
        found = medians[name]
        columns = f"{'-':>10} {'-':>7}" if guess is None else f"{guess:8.3f} s {guess / found - 1:+7.1%}"
        print(f"{name:12} {found:7.3f} s {columns} {found / medians['uneven FSDP']:17.2f}")
    for name, plan in zip(medians, plans, strict=False):
        print(f"{name}: {shared(plan)}; {plan.schedule.waves} wave(s)")


def skewed(cluster: Cluster, hidden: int, layers: int, seq_len: int) -> Plan:
    """Return a plan in which fast processes keep 0.35 of the state each."""
    model = llama(hidden, layers, 8 * hidden)
    plain = plan_of(model, cluster, seq_len, whole("fast", 2, 4), whole("slow", 2, 2), micro_batch=1)
    fast, slow = (
        replace(own, rows=own.micro_batches, state=state, stages=(stage(own.stages[0].gpu, (0, layers)),))
        for own, state in zip(plain.replicas, (7, 3), strict=True)
    )
    return replace(
        plain,
        job=replace(plain.job, framework="eager"),
        replicas=(fast, slow),
        schedule=Schedule(kind="layered", waves=1),
        optimizer=OptimizerPlan(sharding="zero3", parts=20),
        overlap=Overlap(grad_reduce=True, param_gather=True),
    )


def show_memory(cluster: Cluster) -> None:
    """Print the peak memory of each rank beside the plan's, for a larger model and skewed shares of the state."""
    plan = skewed(cluster, 512, 6, 256)
    pairs = zip(predict(plan, default_efficiency()).memory, plan.replicas, strict=True)
    planned = [row[0] for row, replica in pairs for _ in range(replica.count)]
    print(f"peak memory, {plan.model.name}: {shared(plan)}")
    for rank, (grown, own) in enumerate(zip(run_workers(4, peak_bytes, plan), planned, strict=True)):
        tensors = own.total_bytes - own.context_bytes
        columns = f"{grown / 1e6:6.0f} MB measured, {tensors / 1e6:6.0f} MB planned {tensors / grown - 1:+7.1%}"
        print(f"  rank {rank}: {columns}")


if __name__ == "__main__":
    main()
