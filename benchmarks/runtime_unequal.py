"""Processes of unequal speed: the plan made from a measured profile against uniform plans, and against its prediction.

    python benchmarks/runtime_unequal.py

Two processes run fast, two slowly (`throttled`). A first run of four copies measures every layer; the planner makes its
plan from that profile alone. Then steps of that plan and of the uniform plans over the same processes alternate. Layers
are measured in this run, too: predictions from these times tell the error of the model from a change of the machine
since the first run. Last, steps of the best plan for the fast processes alone are timed. Needs PyTorch.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Mapping, Sequence

try:
    import torch
    import torch.distributed as dist
except ImportError:
    raise SystemExit(0) from None  # nothing to run without PyTorch

from runtime_workers import batch_of, cpu_cluster, engine_of, llama, plan_of, run_workers, stage
from throttled import PROCESSES, Throttle, arguments, duties, observer, whole

from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.layers.measured import MeasuredLayers, measured_layers
from shardwright.cost.learned import default_efficiency
from shardwright.plans.plan import Plan, Replica
from shardwright.runtime.step.engine import train_step
from shardwright.runtime.timing.layer_profile import Measured, Stopwatch, medians, profile_document
from shardwright.search.planner import plan as search
from shardwright.spec.cluster import Cluster
from shardwright.spec.read.layer_profile import layer_profile

MODEL, SEQ_LEN, GLOBAL_BATCH = llama(128, 8, 512), 64, 28
WARM_UP, PROFILE_STEPS = 1, 3


def main() -> None:
    options = arguments(__doc__).parse_args()
    shares = duties(options)
    cluster = cpu_cluster(**PROCESSES)
    copies = uniform_plans(cluster)["uniform: 4 copies"]
    before = profiled(copies, [own for _, own in run_workers(4, alternate, [copies], shares, PROFILE_STEPS)])
    mixed = search(MODEL, cluster, copies.job, efficiency=before).best
    plans = uniform_plans(cluster) | {f"planned: {words(mixed)}": mixed}
    found = run_workers(4, alternate, list(plans.values()), shares, options.rounds)
    show(plans, found[0][0], before, profiled(copies, [own for _, own in found]))
    fast = cpu_cluster(fast=PROCESSES["fast"])
    alone = search(MODEL, fast, copies.job, efficiency=before).best
    found = run_workers(alone.gpus, alternate, [alone], shares, options.rounds)
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
        "uniform: 4 copies": make(whole(MODEL, "fast", 2, each), whole(MODEL, "slow", 2, each)),
        "uniform: 2 pipelines of 2": make(pairs),
        "uniform: pipeline of 4": make(Replica(count=1, micro_batches=4 * each, stages=line)),
    }


def words(plan: Plan) -> str:
    """Return the replicas of a plan in a line: copies, layers by stage, micro-batches."""
    return ", ".join(
        f"{replica.count} x [{' '.join(f'{s.gpu} {s.layer_count}' for s in replica.stages)}] {replica.micro_batches}"
        for replica in plan.replicas
    )


def alternate(rank: int, plans: Sequence[Plan], shares: dict[str, float], rounds: int) -> tuple[list[float], Measured]:
    """Return the median seconds of each plan's steps, which take turns, and the times of the first plan's units."""
    engines = [engine_of(plan, rank) for plan in plans]
    observers = [observer(engine, Throttle(shares[engine.place.gpu])) for engine in engines]
    watch = Stopwatch(now=time.perf_counter)
    seconds: list[list[float]] = [[] for _ in plans]
    updates = []

    def watched(unit: int, x: torch.Tensor) -> torch.Tensor:
        return watch.observe(unit, observers[0](unit, x))

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
                observe=watched if first else observers[index],
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
