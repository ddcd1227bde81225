"""Our plan and those of Sailor, Metis, AMP and FlashFlex on one cluster, by the formula of each and by simulation.

    .venv/bin/python benchmarks/peers.py [--profile opt-350m.json] [--scale 1] [--gap 0.01]

32 A100-40 and 96 V100-16 in machines of four (times `--scale`), OPT-350M with measured layers, global batch 1024 (times
`--scale`). t_i are the seconds of stage i for one micro-batch, h_i those of the messages to the next stage and back, K
the micro-batches of a replica; the slowest replica counts. All evaluators get the same t, h, sync and update:

    Sailor      sum(t + h) + (K - 1) max(t + h) + sync + update      (arXiv 2504.17096; eth-easl/sailor)
    Metis       sum t + (K - 1) max t + sum h + sync + update        (ATC'24; SamsungLabs/Metis)
    AMP         sum t + (K - 1) max t + sum h + sync                 (NeurIPS'22; DachengLi1/AMP)
    FlashFlex   sum over the K + P - 1 steps of GPipe of the slowest t + h of the stages at work, + sync
                (Relaxed-System-Lab/FlashFlex@a4f366f:experimental/cost_modeling.py, without the factors 1.8 and 1.1
                that scale its analytic times)

Each peer's plan is the best by its own formula that fits in memory, in these parts of its space, without recomputation:

    AMP         one plan for all machines in order: equal layers, equal micro-batches; t is the mean over GPU types
    Metis       replicas alike, stages of one type each, layers as stages are fast; or one stage with unequal batches
    Sailor      the same without unequal batches, idle GPUs allowed
    FlashFlex   replicas of one type each, of a depth of their own, equal micro-batches

The last line is, for each formula, the best of the plans that our search ranks first, where the formula is the judge in
place of the simulation (those with virtual stages, which the formulas do not know, are left out).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, product
from pathlib import Path

import numpy as np
from peer_formulas import FORMULAS, Formula, Parts, amp, flashflex, metis, sailor

from shardwright import Cluster, Job, Model, check, make_job
from shardwright.arrays import Floats
from shardwright.cost.context import Context
from shardwright.cost.iteration.mixed import Mixed, mixed_iteration
from shardwright.cost.layers.measured import MeasuredLayers, measured_layers
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.facts import headroom
from shardwright.cost.network.collectives import transfer_seconds
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage
from shardwright.search.planner import plan as search
from shardwright.spec.read.cluster import build_cluster
from shardwright.spec.read.layer_profile import load_layer_profile, stand_in_model

EXCERPT = Path(__file__).parents[1] / "tests" / "data" / "opt-350m-layers.json"
MOST_TRIED = 400  # plans of a peer whose memory is checked, best first
DEEPEST = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`count` replicas with stages on the GPU types `kinds` (indices), which hold `layers` each."""

    count: int
    micro_batches: int
    kinds: tuple[int, ...]
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan before it is costed: tensor-parallel degree, micro-batch and replicas."""

    tp: int
    micro_batch: int
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class World:
    """What all planners are given."""

    model: Model
    cluster: Cluster
    job: Job
    efficiency: MeasuredLayers

    @cached_property
    def contexts(self) -> tuple[Context, ...]:
        return tuple(
            Context(model=self.model, pool=pool, job=self.job, efficiency=self.efficiency)
            for pool in self.cluster.pools
        )

    @cached_property
    def settings(self) -> list[tuple[int, int]]:
        """Degrees and micro-batches that were measured on every type."""
        per_type = [
            {(entry.tensor_parallel, entry.micro_batch) for entry in self.efficiency.profile.of(pool.gpu.name)}
            for pool in self.cluster.pools
        ]
        tiles = min(pool.gpus_per_node for pool in self.cluster.pools)
        return sorted((tp, size) for tp, size in set.intersection(*per_type) if tiles % tp == 0)

    def units(self, tp: int) -> list[int]:
        return [pool.gpus // tp for pool in self.cluster.pools]

    def passes(self, kind: int, tp: int, micro_batch: int) -> Floats:
        """Return forward and backward seconds of every position on a GPU type."""
        gpu = self.cluster.pools[kind].gpu.name
        entry = self.efficiency.profile.by_setting[gpu, tp, micro_batch]
        return np.add(entry.forward_seconds, entry.backward_seconds)

    def message(self, kind: int, tp: int, micro_batch: int) -> float:
        """Return the seconds of an activation to another machine and of its gradient back."""
        size = np.array([4.0 * micro_batch * self.job.seq_len * self.model.hidden / tp])
        return 2.0 * float(transfer_seconds(self.contexts[kind].links, size, np.array([True]))[0])


def balanced(world: World, kinds: tuple[int, ...], tp: int, micro_batch: int) -> tuple[int, ...] | None:
    """Return layers of stages such that the slowest is as fast as can be, by bisection."""
    passes = [world.passes(kind, tp, micro_batch) for kind in range(len(world.cluster.pools))]
    each = np.array([passes[kind][1:-1].mean() for kind in kinds])
    extra = np.zeros(len(kinds))
    extra[0] += passes[kinds[0]][0]
    extra[-1] += passes[kinds[-1]][-1]
    total, low, high = len(world.model.layers), 0.0, float(extra.max() + each.max() * len(world.model.layers))
    if len(kinds) > total:
        return None
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if np.floor((middle - extra) / each).clip(0).sum() >= total else (middle, high)
    layers = np.floor((high - extra) / each + 1e-9).clip(0).astype(int)
    while layers.sum() > total:
        layers[int(np.argmax(extra + each * layers))] -= 1
    return tuple(layers.tolist()) if layers.min() > 0 else None


def lockstep(world: World) -> Iterator[Candidate]:
    """Yield replicas that are all alike, their stages in blocks of one type each."""
    types = len(world.cluster.pools)
    for tp, size in world.settings:
        units, total = world.units(tp), world.job.global_batch // size
        for depth in product(range(DEEPEST + 1), repeat=types):
            most = min((units[kind] // stages for kind, stages in enumerate(depth) if stages), default=0)
            count = max((each for each in range(1, most + 1) if total % each == 0), default=0)
            for order in (range(types), range(types - 1, -1, -1)):
                kinds = tuple(kind for kind in order for _ in range(depth[kind]))
                layers = balanced(world, kinds, tp, size) if count else None
                if layers:
                    line = Line(count=count, micro_batches=total // count, kinds=kinds, layers=layers)
                    yield Candidate(tp=tp, micro_batch=size, lines=(line,))


def side_by_side(world: World) -> Iterator[Candidate]:
    """Yield data parallelism over all GPUs with batches as the types are fast."""
    for tp, size in world.settings:
        units, total = world.units(tp), world.job.global_batch // size
        speeds = [1.0 / world.passes(kind, tp, size).sum() for kind in range(len(units))]
        for least in range(1, total // sum(units) + 1):
            shares = [max(round(least * speed / min(speeds)), 1) for speed in speeds]
            rest = total - sum(share * count for share, count in zip(shares[1:], units[1:], strict=True))
            if rest > 0 and rest % units[0] == 0:
                shares[0] = rest // units[0]
                yield Candidate(tp=tp, micro_batch=size, lines=tuple(_alone(world, units, shares)))


def _alone(world: World, units: list[int], shares: list[int]) -> Iterator[Line]:
    for kind, (count, share) in enumerate(zip(units, shares, strict=True)):
        yield Line(count=count, micro_batches=share, kinds=(kind,), layers=(len(world.model.layers),))


def islands(world: World) -> Iterator[Candidate]:
    """Yield replicas of one type each, of a depth and number of their own, with equal micro-batches."""
    types = range(len(world.cluster.pools))
    for tp, size in world.settings:
        units, total = world.units(tp), world.job.global_batch // size
        for depth in product(range(1, DEEPEST + 1), repeat=len(units)):
            for used in product(*(range(units[kind] // depth[kind], -1, -1) for kind in types)):
                lines = [(kind, number) for kind, number in zip(types, used, strict=True) if number]
                if not lines or total % sum(used) or any(used[kind] * 2 < units[kind] // depth[kind] for kind in types):
                    continue
                split = {kind: balanced(world, (kind,) * depth[kind], tp, size) for kind, _ in lines}
                if all(split.values()):
                    yield Candidate(
                        tp=tp,
                        micro_batch=size,
                        lines=tuple(
                            Line(count=number, micro_batches=total // sum(used), kinds=(kind,) * depth[kind], layers=at)
                            for kind, number in lines
                            if (at := split[kind])
                        ),
                    )


def in_order(world: World) -> Iterator[Candidate]:
    """Yield uniform plans over all machines in the order of the cluster, pipeline ranks outermost."""
    layers = len(world.model.layers)
    for tp, size in world.settings:
        units, total = world.units(tp), world.job.global_batch // size
        kinds = [kind for kind, count in enumerate(units) for _ in range(count)]
        for depth in range(1, min(layers, len(kinds)) + 1):
            copies = len(kinds) // depth
            if len(kinds) % depth or total % copies:
                continue
            cuts = [round(stage * layers / depth) for stage in range(depth + 1)]
            held = tuple(int(count) for count in np.diff(cuts))
            paths = [tuple(kinds[stage * copies + copy] for stage in range(depth)) for copy in range(copies)]
            lines = [
                Line(count=len(list(group)), micro_batches=total // copies, kinds=path, layers=held)
                for path, group in groupby(paths)
            ]
            yield Candidate(tp=tp, micro_batch=size, lines=tuple(lines))


def own_view(world: World, candidate: Candidate, formula: Formula, *, averaged: bool) -> float:
    """Return what a peer thinks of a candidate, without what comes after the pipeline."""
    tp, size = candidate.tp, candidate.micro_batch
    passes = [world.passes(kind, tp, size) for kind in range(len(world.cluster.pools))]
    if averaged:
        weights = np.array([pool.gpus for pool in world.cluster.pools], dtype=float)
        passes = [np.average(passes, axis=0, weights=weights)] * len(passes)
    sums = [np.concatenate([[0.0], np.cumsum(each)]) for each in passes]
    t, h = [], []
    for line in candidate.lines:
        cuts = np.cumsum([1, *line.layers])
        cuts[0], cuts[-1] = 0, len(passes[0])
        ends = zip(line.kinds, cuts[:-1], cuts[1:], strict=True)
        t.append(np.array([sums[kind][high] - sums[kind][low] for kind, low, high in ends]))
        h.append(np.array([world.message(kind, tp, size) for kind in line.kinds[:-1]] + [0.0]))
    return formula(Parts(tuple(t), tuple(h), tuple(line.micro_batches for line in candidate.lines), 0.0, 0.0))


def plan_of(world: World, candidate: Candidate) -> Plan:
    """Return the plan of a candidate."""
    several = sum(line.count for line in candidate.lines) > 1
    return Plan(
        model=world.model,
        job=world.job,
        cluster=world.cluster,
        micro_batch=candidate.micro_batch,
        schedule=Schedule(),
        replicas=tuple(_replica(world, candidate.tp, line) for line in candidate.lines),
        optimizer=OptimizerPlan(sharding="zero1" if several else "none"),
        overlap=Overlap(grad_reduce=several, param_gather=several),
        sequence_parallel=False,
        flash_attention=True,
    )


def _replica(world: World, tp: int, line: Line) -> Replica:
    cuts = np.cumsum([0, *line.layers]).tolist()
    stages = tuple(
        Stage(
            gpu=world.cluster.pools[kind].gpu.name,
            tensor_parallel=tp,
            context_parallel=1,
            expert_parallel=1,
            expert_tensor_parallel=1,
            layers=((low, high),),
            recompute=Recompute(),
        )
        for kind, low, high in zip(line.kinds, cuts[:-1], cuts[1:], strict=True)
    )
    return Replica(count=line.count, micro_batches=line.micro_batches, stages=stages)


def fits(world: World, plan: Plan, found: Mixed) -> bool:
    room = headroom(0.8, world.job)
    limits = {pool.gpu.name: pool.memory_bytes * room for pool in world.cluster.pools}
    return all(
        float(peak) <= limits[stage.gpu]
        for line, timed in zip(plan.replicas, found.replicas, strict=True)
        for stage, peak in zip(line.stages, timed.peak_bytes, strict=True)
    )


def best_of(world: World, candidates: Iterator[Candidate], formula: Formula, *, averaged: bool = False) -> Plan | None:
    """Return the plan that a peer thinks best of those that fit."""
    ranked = sorted(candidates, key=lambda each: own_view(world, each, formula, averaged=averaged))
    for candidate in ranked[:MOST_TRIED]:
        plan = plan_of(world, candidate)
        if not check(plan) and fits(world, plan, mixed_iteration(plan, world.efficiency)):
            return plan
    return None


def parts_of(plan: Plan, found: Mixed) -> Parts:
    """Return what the formulas see of a plan: the same figures that its simulation has."""
    return Parts(
        t=tuple((each.stages.forward + each.stages.backward).sum(axis=1)[0] for each in found.replicas),
        h=tuple(np.append(2.0 * each.transfers, 0.0) for each in found.replicas),
        micro_batches=tuple(replica.micro_batches for replica in plan.replicas),
        sync=max(float(each.tails.max() + each.gathers.max()) for each in found.replicas),
        update=max(float(each.optimizer.max()) for each in found.replicas),
    )


def judged(world: World, plan: Plan) -> list[float]:
    """Return the seconds of a plan by every formula, and by simulation."""
    found = mixed_iteration(plan, world.efficiency)
    parts = parts_of(plan, found)
    return [*(formula(parts) for formula in FORMULAS.values()), found.seconds]


def words(plan: Plan) -> str:
    """Return the replicas of a plan in a line."""
    found = []
    for replica in plan.replicas:
        stages = " > ".join(f"{stage.gpu[:4]}:{stage.layer_count}" for stage in replica.stages)
        found.append(f"{replica.count} × {replica.micro_batches} ({stages})")
    tp = plan.stages[0].tensor_parallel
    return f"tp {tp}, micro-batch {plan.micro_batch}: " + ", ".join(found)


def world_of(path: Path, scale: int) -> World:
    """Return the cluster and the job of the comparison."""
    profile = load_layer_profile(path)
    model = stand_in_model(profile, profile.precision)
    nodes = [
        {"count": 8 * scale, "gpu": "A100-SXM-40", "gpus": 4, "inter_node_gbps": 50},
        {"count": 24 * scale, "gpu": "V100-SXM2", "gpus": 4, "memory_gb": 16, "inter_node_gbps": 50},
    ]
    cluster = build_cluster({"nodes": nodes}, "peers")
    job = make_job(global_batch=1024 * scale, seq_len=profile.seq_len, precision=profile.precision)
    efficiency = measured_layers(default_efficiency(), profile, model, cluster, job)
    return World(model=model, cluster=cluster, job=job, efficiency=efficiency)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, default=EXCERPT)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--gap", type=float, default=0.01)
    parser.add_argument("--top", type=int, default=60, help="plans of ours that the formulas choose from")
    given = parser.parse_args()
    world = world_of(given.profile, given.scale)
    ranking = search(world.model, world.cluster, world.job, efficiency=world.efficiency, top=given.top, gap=given.gap)
    plans: dict[str, Plan | None] = {
        "Shardwright": ranking.best,
        "Sailor": best_of(world, lockstep(world), sailor),
        "Metis": best_of(world, (each for part in (lockstep, side_by_side) for each in part(world)), metis),
        "AMP": best_of(world, in_order(world), amp, averaged=True),
        "FlashFlex": best_of(world, islands(world), flashflex),
    }
    print(f"{world.model.name} on " + " + ".join(f"{pool.gpus} {pool.gpu.name}" for pool in world.cluster.pools))
    print(f"search {ranking.search.seconds:.2f} s, gap {100 * (ranking.search.gap or 0):.2f} %\n")
    print(
        f"{'plan of':<12}"
        + "".join(f"{name:>11}" for name in (*FORMULAS, "simulation"))
        + "  seconds by the formula of"
    )
    for name, plan in plans.items():
        if plan is None:
            print(f"{name:<12}  no plan fits")
            continue
        print(f"{name:<12}" + "".join(f"{value:>11.3f}" for value in judged(world, plan)) + f"  {words(plan)}")
    plain = [plan for plan in ranking.plans if plan.schedule.virtual_stages == 1]
    least = np.min([judged(world, plan) for plan in plain], axis=0)
    print(f"{'our best':<12}" + "".join(f"{value:>11.3f}" for value in least))


if __name__ == "__main__":
    main()
