"""Plans near a plan, by changes of which each leaves it whole: layers between stages, micro-batches between replicas,
degrees, recomputation, types and order of stages, replicas and stages more or fewer, switches.

A move is a function of a plan and a source of chance; None where it has nothing to change. What it makes may be illegal:
that is for `check` to say."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from shardwright.plans.plan import Plan, Recompute, Replica, Stage

Move = Callable[[Plan, random.Random], Plan | None]


def moved(plan: Plan, pick: random.Random) -> Plan | None:
    """Return a plan near by, equal replicas of it as one group."""
    experts = plan.model.has_experts
    found = pick.choice((*MOVES, _spread) if experts and len(plan.gpus_by_type) > 1 else MOVES)(plan, pick)
    return None if found is None else replace(found, replicas=_grouped(found.replicas), prediction=None)


def _grouped(replicas: Sequence[Replica]) -> tuple[Replica, ...]:
    counts: dict[Replica, int] = {}
    for replica in replicas:
        alike = replace(replica, count=1)
        counts[alike] = counts.get(alike, 0) + replica.count
    return tuple(replace(alike, count=count) for alike, count in counts.items())


def _changed(plan: Plan, place: int, replica: Replica, pick: random.Random) -> Plan:
    """Return the plan with the copies of the replica at `place`, or a single one of them, changed to `replica`."""
    before = plan.replicas[place]
    alone = before.count > 1 and pick.random() < 0.5
    there = [replace(before, count=before.count - 1), replace(replica, count=1)] if alone else [replica]
    return replace(plan, replicas=(*plan.replicas[:place], *there, *plan.replicas[place + 1 :]))


def _some(plan: Plan, pick: random.Random) -> tuple[int, Replica]:
    place = pick.randrange(len(plan.replicas))
    return place, plan.replicas[place]


def _held(stages: Sequence[Stage], layers: Sequence[int]) -> tuple[Stage, ...]:
    """Return stages of one range each with so many layers."""
    ends = [sum(layers[: place + 1]) for place in range(len(layers))]
    return tuple(
        replace(stage, layers=(ends_of,), recompute=_within(stage.recompute, ends_of[1] - ends_of[0]))
        for stage, ends_of in zip(stages, pairwise([0, *ends]), strict=True)
    )


def _within(recompute: Recompute, layers: int) -> Recompute:
    return recompute if recompute.layers is None else replace(recompute, layers=max(min(recompute.layers, layers), 1))


def _layers(plan: Plan, pick: random.Random) -> Plan | None:
    """Layers from one stage of a replica to another one."""
    place, replica = _some(plan, pick)
    if len(replica.stages) < 2 or plan.schedule.virtual_stages > 1:
        return None
    held = [stage.layer_count for stage in replica.stages]
    here, there = pick.sample(range(len(held)), 2)
    number = min(pick.choice((1, 1, 2, 4)), held[here] - 1)
    held[here], held[there] = held[here] - number, held[there] + number
    stages = _held(replica.stages, held)
    if pick.random() < 0.5:  # of all replicas of this depth
        alike = [replace(each, stages=stages) if each.stages == replica.stages else each for each in plan.replicas]
        return replace(plan, replicas=tuple(alike))
    return _changed(plan, place, replace(replica, stages=stages), pick)


def _micro_batches(plan: Plan, pick: random.Random) -> Plan | None:
    """A micro-batch, or a few, from one replica to another one."""
    singles = [place for place, replica in enumerate(plan.replicas) for _ in range(min(replica.count, 2))]
    if len(singles) < 2:
        return None
    here, there = pick.sample(singles, 2)
    number = min(pick.choice((1, 1, 1, 2, 4)), plan.replicas[here].micro_batches - 1)
    return (
        None
        if number < 1
        else _given(plan, {here: -number, there: number})
        if here != there
        else _halved(plan, here, number)
    )


def _given(plan: Plan, more: dict[int, int]) -> Plan:
    """Return the plan with a copy of some replicas each that takes more micro-batches."""
    replicas: list[Replica] = []
    for place, replica in enumerate(plan.replicas):
        if place in more:
            replicas.append(replace(replica, count=1, micro_batches=replica.micro_batches + more[place]))
        left = replica.count - (place in more)
        replicas += [replace(replica, count=left)] if left else []
    return replace(plan, replicas=tuple(replicas))


def _halved(plan: Plan, place: int, number: int) -> Plan:
    """Return the plan with one copy of a replica that gives to another copy."""
    replica = plan.replicas[place]
    parts = [replace(replica, count=1, micro_batches=replica.micro_batches + more) for more in (number, -number)]
    rest = [replace(replica, count=replica.count - 2)] if replica.count > 2 else []
    return replace(plan, replicas=(*plan.replicas[:place], *parts, *rest, *plan.replicas[place + 1 :]))


def _recomputation(plan: Plan, pick: random.Random) -> Plan | None:
    place, replica = _some(plan, pick)
    most = max(end - start for stage in replica.stages for start, end in stage.layers)
    block = Recompute(granularity="full", method="block", layers=pick.randint(1, max(most, 1)))
    chosen = pick.choice((Recompute(), Recompute(granularity="selective"), block))
    if pick.random() < 0.5:
        return _every_stage(plan, lambda stage: replace(stage, recompute=chosen))
    which = pick.randrange(len(replica.stages))
    stages = [replace(stage, recompute=chosen) if i == which else stage for i, stage in enumerate(replica.stages)]
    return _changed(plan, place, replace(replica, stages=tuple(stages)), pick)


def _every_stage(plan: Plan, change: Callable[[Stage], Stage]) -> Plan:
    return replace(
        plan, replicas=tuple(replace(each, stages=tuple(map(change, each.stages))) for each in plan.replicas)
    )


def _types(plan: Plan, pick: random.Random) -> Plan | None:
    """Another GPU type for a stage, or for all stages of a replica."""
    place, replica = _some(plan, pick)
    name = pick.choice([pool.gpu.name for pool in plan.cluster.pools])
    which = range(len(replica.stages)) if pick.random() < 0.5 else [pick.randrange(len(replica.stages))]
    stages = [replace(stage, gpu=name) if i in which else stage for i, stage in enumerate(replica.stages)]
    return _changed(plan, place, replace(replica, stages=tuple(stages)), pick)


def _order(plan: Plan, pick: random.Random) -> Plan | None:
    """The GPUs of a replica's stages in another order."""
    place, replica = _some(plan, pick)
    if len(replica.stages) < 2 or plan.schedule.virtual_stages > 1:
        return None
    stages = list(replica.stages)
    if pick.random() < 0.5:
        stages.reverse()
    else:
        here, there = pick.sample(range(len(stages)), 2)
        stages[here], stages[there] = stages[there], stages[here]
    return _changed(plan, place, replace(replica, stages=_held(stages, [each.layer_count for each in stages])), pick)


def _depth(plan: Plan, pick: random.Random) -> Plan | None:
    """A stage more or fewer in a replica."""
    place, replica = _some(plan, pick)
    if plan.schedule.virtual_stages > 1:
        return None
    stages = list(replica.stages)
    held = [stage.layer_count for stage in stages]
    which = pick.randrange(len(stages))
    if pick.random() < 0.5 and len(stages) > 1:
        gone = held.pop(which)
        held[min(which, len(held) - 1)] += gone
        del stages[which]
    elif held[which] > 1:
        part = held[which] // 2
        held[which : which + 1] = [held[which] - part, part]
        new = replace(stages[which], gpu=pick.choice([pool.gpu.name for pool in plan.cluster.pools]))
        stages.insert(which + pick.randrange(2), new)
    return _changed(plan, place, replace(replica, stages=_held(stages, held)), pick)


def _replicas(plan: Plan, pick: random.Random) -> Plan | None:
    """A replica more, which takes a part of the work of another one, or one fewer."""
    place, replica = _some(plan, pick)
    if pick.random() < 0.5:
        part = replica.micro_batches // 2
        if not part:
            return None
        name = pick.choice([pool.gpu.name for pool in plan.cluster.pools])
        stages = replica.stages if pick.random() < 0.5 else tuple(replace(each, gpu=name) for each in replica.stages)
        less = _given(plan, {place: -part})
        return replace(less, replicas=(*less.replicas, Replica(count=1, micro_batches=part, stages=stages)))
    if plan.data_parallel < 2:
        return None
    left = [replace(each, count=each.count - (i == place)) for i, each in enumerate(plan.replicas)]
    left = [each for each in left if each.count]
    heir = pick.randrange(len(left))
    return _given(replace(plan, replicas=tuple(left)), {heir: replica.micro_batches})


def _copies(plan: Plan, pick: random.Random) -> Plan | None:
    """Twice the replicas with half the micro-batches each, or the reverse."""
    if pick.random() < 0.5:
        if any(replica.micro_batches % 2 for replica in plan.replicas):
            return None
        halves = [replace(each, count=2 * each.count, micro_batches=each.micro_batches // 2) for each in plan.replicas]
        return replace(plan, replicas=tuple(halves))
    if any(replica.count % 2 for replica in plan.replicas):
        return None
    doubles = [replace(each, count=each.count // 2, micro_batches=2 * each.micro_batches) for each in plan.replicas]
    return replace(plan, replicas=tuple(doubles))


def _sizes(plan: Plan, pick: random.Random) -> Plan | None:
    """Micro-batches of another size."""
    factor = pick.choice((2, 3))
    if pick.random() < 0.5:
        if any(replica.micro_batches % factor for replica in plan.replicas):
            return None
        counts = [replace(each, micro_batches=each.micro_batches // factor) for each in plan.replicas]
        return replace(plan, micro_batch=plan.micro_batch * factor, replicas=tuple(counts))
    if plan.micro_batch % factor:
        return None
    counts = [replace(each, micro_batches=each.micro_batches * factor) for each in plan.replicas]
    return replace(plan, micro_batch=plan.micro_batch // factor, replicas=tuple(counts))


def _degrees(plan: Plan, pick: random.Random) -> Plan | None:
    """Another tensor-parallel degree, of all stages or of those on one type."""
    factor, up = pick.choice((2, 3)), pick.random() < 0.5
    name = pick.choice([None, *plan.gpus_by_type])

    def other(stage: Stage) -> Stage:
        if name not in (None, stage.gpu) or (not up and stage.tensor_parallel % factor):
            return stage
        tp = stage.tensor_parallel * factor if up else stage.tensor_parallel // factor
        alike = stage.expert_tensor_parallel == stage.tensor_parallel
        return replace(stage, tensor_parallel=tp, expert_tensor_parallel=tp if alike else stage.expert_tensor_parallel)

    found = _every_stage(plan, other)
    split = any(stage.tensor_parallel > 1 for stage in found.stages)
    overlap = replace(plan.overlap, tensor_parallel=plan.overlap.tensor_parallel and split)
    return replace(found, sequence_parallel=split, overlap=overlap)


def _switches(plan: Plan, pick: random.Random) -> Plan | None:
    orders = {"tp-cp-ep-dp-pp": "tp-cp-ep-pp-dp", "tp-cp-ep-pp-dp": "tp-cp-ep-dp-pp"}
    sharding = pick.choice(("none", "zero1", "zero2", "zero3"))
    both = replace(plan.overlap, grad_reduce=True, param_gather=plan.optimizer.distributed)
    return pick.choice(
        (
            replace(plan, rank_order=orders[plan.rank_order]),
            replace(plan, optimizer=replace(plan.optimizer, sharding=sharding, offload=0.0)),
            replace(plan, overlap=both),
            replace(plan, overlap=replace(plan.overlap, grad_reduce=False, param_gather=False)),
            replace(plan, overlap=replace(plan.overlap, tensor_parallel=not plan.overlap.tensor_parallel)),
            replace(plan, sequence_parallel=not plan.sequence_parallel),
            replace(plan, flash_attention=True),
        )
    )


def _spread(plan: Plan, pick: random.Random) -> Plan | None:
    """Experts over twice or half as many ranks, or sequences over twice or half, by half or twice as many replicas."""
    up, of_experts = pick.random() < 0.5, pick.random() < 0.5

    def other(degree: int) -> int:
        return 2 * degree if up else max(degree // 2, 1)

    if of_experts:
        return _every_stage(plan, lambda stage: replace(stage, expert_parallel=other(stage.expert_parallel)))
    spread = _every_stage(plan, lambda stage: replace(stage, context_parallel=other(stage.context_parallel)))
    if spread == plan or (up and any(replica.count % 2 for replica in plan.replicas)):
        return None
    halves, doubles = (2, 1) if up else (1, 2)
    counts = [
        replace(each, count=each.count * doubles // halves, micro_batches=each.micro_batches * halves // doubles)
        for each in spread.replicas
    ]
    return replace(spread, replicas=tuple(counts))


MOVES: tuple[Move, ...] = (
    *(_layers, _layers, _micro_batches, _micro_batches, _recomputation, _types, _order, _depth, _replicas),
    *(_copies, _sizes, _degrees, _switches),
)
