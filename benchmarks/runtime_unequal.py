"""Processes of unequal speed: the plan made from a measured profile against uniform plans, and against its prediction.

    python benchmarks/runtime_unequal.py

Two processes run fast, two slowly: each works for the share of the time that its duty cycle allows, unit by unit, and
sleeps for the rest, as under a quota of processor time. What counts is processor time, so the other work of a machine
disturbs little as long as all duties together stay well below its cores. The update and the sums of gradients are not
slowed down. A first run of four copies measures every layer; the planner makes its plan from that profile alone. Then
steps of that plan and of the uniform plans over the same processes alternate. Layers are measured in this run, too:
predictions from these times tell the error of the model from a change of the machine since the first run. Last, steps
of the best plan for the fast processes alone are timed. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

try:
    import torch
    import torch.distributed as dist
except ImportError:
    raise SystemExit(0) from None  # nothing to run without PyTorch

from runtime_workers import batch_of, cpu_cluster, engine_of, llama, plan_of, run_workers, stage

from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.layers.measured import MeasuredLayers, measured_layers
from shardwright.cost.learned import default_efficiency
from shardwright.plans.plan import Plan, Replica
from shardwright.runtime.step.engine import Engine, train_step
from shardwright.runtime.timing.layer_profile import Measured, medians, profile_document
from shardwright.runtime.timing.stopwatch import Stopwatch
from shardwright.search.planner import plan as search
from shardwright.spec.cluster import Cluster
from shardwright.spec.read.layer_profile import layer_profile

MODEL, SEQ_LEN, GLOBAL_BATCH = llama(128, 8, 512), 64, 28
PROCESSES = {"fast": 2, "slow": 2}
WARM_UP, PROFILE_STEPS = 1, 3


class Throttle:
    """Lets a rank compute for a part `duty` of the time. Shown the activations of a step, it sleeps after each unit."""

    def __init__(self, engine: Engine, duty: float) -> None:
        self.duty, self.last = duty, [chunk.units[-1] for chunk in engine.pipeline.chunks]
        self.first = [chunk.units[0] for chunk in engine.pipeline.chunks]
        self.start()

    def start(self) -> None:
        self.began, self.used = time.perf_counter(), time.thread_time()

    def pay(self) -> None:
        due = self.began + (time.thread_time() - self.used) / self.duty
        time.sleep(max(due - time.perf_counter(), 0.0))
        self.start()

    def observe(self, unit: int, x: torch.Tensor) -> torch.Tensor:
        """Sleep now, and when the gradient of this output is there, for what has been computed since."""
        self.start() if unit + 1 in self.first else self.pay()
        if x.requires_grad:
            tensor: Any = x
            tensor.register_hook(lambda _: self.start() if unit in self.last else self.pay())
        return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="steps of every plan")
    parser.add_argument("--duty", type=float, default=1 / 8, help="part of the time in which fast processes work")
    parser.add_argument("--times-slower", type=float, default=2.5, help="how much less the slow ones do")
    options = parser.parse_args()
    duties = {"fast": options.duty, "slow": options.duty / options.times_slower}
    cluster = cpu_cluster(**PROCESSES)
    copies = uniform_plans(cluster)["uniform: 4 copies"]
    before = profiled(copies, [own for _, own in run_workers(4, alternate, [copies], duties, PROFILE_STEPS)])
    mixed = search(MODEL, cluster, copies.job, efficiency=before).best
    plans = uniform_plans(cluster) | {f"planned: {words(mixed)}": mixed}
    found = run_workers(4, alternate, list(plans.values()), duties, options.rounds)
    show(plans, found[0][0], before, profiled(copies, [own for _, own in found]))
    fast = cpu_cluster(fast=PROCESSES["fast"])
    alone = search(MODEL, fast, copies.job, efficiency=before).best
    found = run_workers(alone.gpus, alternate, [alone], duties, options.rounds)
    show({f"fast processes alone: {words(alone)}": alone}, found[0][0], before, None)


def show(
    plans: Mapping[str, Plan], seconds: Sequence[float], before: MeasuredLayers, after: MeasuredLayers | None
) -> None:
    """Print measured seconds of a step, predictions from the profiles before and during the run, and how much longer
    each plan takes than the last."""
    print(
        f"{'plan':60} {'measured':>9}   {'predicted before':>18} {'from times during':>18}   "
        f"over the last: predicted, measured"
    )
    predicted = [mixed_iteration(plan, before).seconds for plan in plans.values()]
    for name, plan, guess, each in zip(plans, plans.values(), predicted, seconds, strict=True):
        columns = [f"{guess:8.3f} s {guess / each - 1:+7.1%}", "-"]
        if after is not None:
            known = mixed_iteration(plan, after).seconds
            columns[1] = f"{known:8.3f} s {known / each - 1:+7.1%}"
        gain = f"{guess / predicted[-1]:6.2f} {each / seconds[-1]:6.2f}"
        print(f"{name:60} {each:7.3f} s   {columns[0]:>18} {columns[1]:>18}   {gain}")


def profiled(plan: Plan, ranks: Sequence[Measured]) -> MeasuredLayers:
    """Return the efficiency model of the profile that the ranks of a plan measured."""
    document = profile_document(plan, ranks)
    return measured_layers(default_efficiency(), layer_profile(document), MODEL, plan.cluster, plan.job)


def uniform_plans(cluster: Cluster) -> dict[str, Plan]:
    """Return the uniform plans over all four processes: the same layers, the same micro-batches for each."""
    layers = len(MODEL.layers)
    half, quarters = layers // 2, [(start, start + layers // 4) for start in range(0, layers, layers // 4)]
    each = GLOBAL_BATCH // 4
    pairs = Replica(count=2, micro_batches=2 * each, stages=(stage("fast", (0, half)), stage("slow", (half, layers))))
    line = tuple(stage(gpu, part) for gpu, part in zip(("fast", "fast", "slow", "slow"), quarters, strict=True))
    make = functools.partial(plan_of, MODEL, cluster, SEQ_LEN, micro_batch=1)
    return {
        "uniform: 4 copies": make(whole("fast", 2, each), whole("slow", 2, each)),
        "uniform: 2 pipelines of 2": make(pairs),
        "uniform: pipeline of 4": make(Replica(count=1, micro_batches=4 * each, stages=line)),
    }


def whole(gpu: str, count: int, micro_batches: int) -> Replica:
    return Replica(count=count, micro_batches=micro_batches, stages=(stage(gpu, (0, len(MODEL.layers))),))


def words(plan: Plan) -> str:
    """Return the replicas of a plan in a line: copies, layers by stage, micro-batches."""
    return ", ".join(
        f"{replica.count} x [{' '.join(f'{s.gpu} {s.layer_count}' for s in replica.stages)}] {replica.micro_batches}"
        for replica in plan.replicas
    )


def alternate(rank: int, plans: Sequence[Plan], duties: dict[str, float], rounds: int) -> tuple[list[float], Measured]:
    """Return the median seconds of each plan's steps, which take turns, and the times of the first plan's units."""
    engines = [engine_of(plan, rank) for plan in plans]
    throttles = [Throttle(engine, duties[engine.place.gpu]) for engine in engines]
    watch = Stopwatch(now=time.perf_counter)
    seconds: list[list[float]] = [[] for _ in plans]
    updates = []

    def watched(unit: int, x: torch.Tensor) -> torch.Tensor:
        return watch.observe(unit, throttles[0].observe(unit, x))

    for number in range(WARM_UP + rounds):
        timed = number >= WARM_UP
        for index, engine in enumerate(engines):
            first = timed and index == 0
            batch = batch_of(engine.layout.plan, engine.place.first_sample)
            dist.barrier()
            begin = time.perf_counter()
            result = train_step(
                engine,
                batch,
                number,
                observe=watched if first else throttles[index].observe,
                record=watch.record if first else None,
            )
            dist.barrier()
            if timed:
                seconds[index].append(time.perf_counter() - begin)
            if first:
                updates.append(result.update_seconds)
    measured = Measured(
        gpu=engines[0].place.gpu,
        tensor_parallel=1,
        forward_seconds=medians(watch.forward),
        backward_seconds=medians(watch.backward),
        recomputed=frozenset(),
        update_seconds_each=statistics.median(updates) / sum(slot.stop - slot.start for slot in engines[0].slots),
    )
    return [statistics.median(each) for each in seconds], measured


if __name__ == "__main__":
    main()
