"""New plans at once, from the plan before: replicas whose machines are there keep their layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import gcd, lcm

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.cost.iteration.mixed import Mixed, mixed_iteration, pipeline_seconds
from shardwright.plans.check import check
from shardwright.plans.plan import Plan, RankOrder, Replica
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.mixed.drafts.draft import Draft, fitting, plan_of
from shardwright.search.mixed.drafts.realise import shares
from shardwright.search.mixed.heuristics.attempts import Drafter, attempt
from shardwright.search.mixed.master.column_pool import ColumnPool
from shardwright.search.mixed.master.regions import shortest
from shardwright.search.mixed.tables.settings import Setting
from shardwright.search.space.axes import Space
from shardwright.spec.cluster import Cluster

DRAFTS = 4  # made of the solutions of the integer program, shared among the types: more types take longer
GAP = 0.01


def remaining(previous: Plan, task: ReplanTask) -> tuple[Plan, Mixed] | None:
    """Return the plan `previous` on the cluster of a task with its iteration: without the replicas whose machines are
    gone, and with some on machines that have nothing to do where that is faster. None where it does not fit, and where
    an interleaved schedule, which runs only some numbers of micro-batches, would have to share them out anew."""
    step = _together(previous)
    numbers = [number - number % step for number in _numbers(previous, task.cluster)]
    left = [replace(replica, count=count) for replica, count in zip(previous.replicas, numbers, strict=True) if count]
    if not left:
        return None
    plan = replace(previous, cluster=task.cluster, replicas=tuple(left), prediction=None)
    lost, interleaved = plan.replicas != previous.replicas, plan.schedule.virtual_stages > 1
    if lost and interleaved:
        return None
    more = () if interleaved or step > 1 else _more(plan, task)
    chosen = [plan.replicas] if lost else []
    chosen += [(*plan.replicas, *more)] if more else []
    options = [] if lost else [(0.0, plan)]
    options += _shared_out(plan, chosen, task) if chosen else []
    best: tuple[Plan, Mixed] | None = None
    for expected, option in sorted(options, key=lambda item: item[0]):
        if (best is None or expected < best[1].seconds) and not check(option):
            iteration = fitting(task.contexts, option, task.known)
            if iteration is not None and (best is None or iteration.seconds < best[1].seconds):
                best = option, iteration
    return best


def _more(plan: Plan, task: ReplanTask) -> tuple[Replica, ...]:
    """Return replicas on the machines that have none, as many equal ones as can be: of all types together or, if that
    does not fit, of one."""
    units, instance, workshop = task.by.instance.table.units, task.by.instance, task.by.workshop
    names = [context.pool.gpu.name for context in task.contexts]
    used = np.array([plan.gpus_by_type[name] // tp for name, tp in zip(names, task.setting.tp, strict=True)])
    spare = np.maximum(units - used, 0)
    kinds = np.flatnonzero(spare)
    for spared in [spare, *(spare * (np.arange(len(spare)) == kind) for kind in kinds if len(kinds) > 1)]:
        whole = gcd(*spared.tolist())
        for number in (number for number in range(whole, 0, -1) if whole % number == 0):
            copies = plan.data_parallel + number
            size = max(
                int(instance.total * (spared / instance.layers.seconds).sum() / number / instance.speeds.sum()), 1
            )
            if copies > instance.total or spared.sum() // number > instance.depth:
                continue
            around = workshop.around(copies, kinds)[0]
            line = workshop.line(tuple((spared // number).tolist()), size, around)
            if line is not None:
                draft = Draft(setting=task.setting, replicas=((line, number, size),), seconds=line.seconds)
                return plan_of(task.contexts, task.cluster, draft, rank_order=plan.rank_order).replicas
    return ()


def _together(plan: Plan) -> int:
    """Return how many equal replicas come and go together, as an expert's weights are spread over them."""
    stages = (stage for replica in plan.replicas for stage in replica.stages)
    spread = ((stage.expert_parallel * stage.expert_tensor_parallel, stage.gpus) for stage in stages)
    return lcm(*(ranks // gcd(ranks, gpus) for ranks, gpus in spread))


def _shared_out(plan: Plan, chosen: Sequence[tuple[Replica, ...]], task: ReplanTask) -> list[tuple[float, Plan]]:
    """Return the plan with each of `chosen` as its replicas, which share out all micro-batches of an iteration, and the
    seconds expected of them. The last has all the kinds of replicas that the others begin with."""
    step = _together(plan)
    everyone, total = chosen[-1], plan.job.global_batch // plan.micro_batch
    timed = mixed_iteration(replace(plan, replicas=everyone), task.contexts[0].efficiency, known=task.known).replicas
    known: dict[tuple[int, int], float] = {}

    def seconds(kind: int, size: int) -> float:
        if (kind, size) not in known:
            took, sized = timed[kind], replace(everyone[kind], micro_batches=size)
            later = took.busy_seconds - took.pipeline_seconds
            known[kind, size] = coarse(later + pipeline_seconds(plan, sized, took.stages, took.transfers))
        return known[kind, size]

    options = []
    for some in chosen:
        copies = [replica.count for replica in some]
        if sum(copies) <= total and total % step == 0:
            groups = [count // step for count in copies]
            given = shares(groups, [replica.micro_batches for replica in some], total // step, seconds)
            replicas = [replace(some[kind], count=step * count, micro_batches=size) for kind, count, size in given]
            longest = max(seconds(kind, size) for kind, _, size in given)
            options.append((longest, replace(plan, replicas=tuple(replicas))))
    return options


def _numbers(previous: Plan, cluster: Cluster) -> list[int]:
    """Return how many replicas of each kind have machines. Of those that need a GPU type of which too few are left,
    those are given up that do least with it."""
    numbers = [replica.count for replica in previous.replicas]
    there = cluster.gpus_by_type
    needs = [_gpus(replica) for replica in previous.replicas]
    for name in previous.gpus_by_type:
        done = {
            kind: replica.micro_batches / needs[kind][name]
            for kind, replica in enumerate(previous.replicas)
            if needs[kind][name]
        }
        users = sorted(done, key=done.__getitem__)
        missing = sum(numbers[kind] * needs[kind][name] for kind in users) - there[name]
        for kind in users:
            given_up = min(numbers[kind], max(-(-missing // needs[kind][name]), 0))
            numbers[kind] -= given_up
            missing -= given_up * needs[kind][name]
    return numbers


def _gpus(replica: Replica) -> Counter[str]:
    """Return how many GPUs of each type one copy of a replica has."""
    gpus: Counter[str] = Counter()
    for stage in replica.stages:
        gpus[stage.gpu] += stage.gpus
    return gpus


@record
class ReplanTask:
    """What is looked for: plans of one setting, its instance, on a cluster, with a context for each GPU type."""

    contexts: tuple[Context, ...]
    cluster: Cluster
    by: Drafter
    rank_order: RankOrder
    known: Known

    @property
    def setting(self) -> Setting:
        return self.by.instance.setting


def quick_plan(task: ReplanTask, incumbent: float, hints: Sequence[tuple[int, ...]]) -> tuple[Plan, Mixed] | None:
    """Return a plan that takes less than `incumbent` seconds, with its iteration, if one is found. `hints` are
    compositions that it may have, beside short ones and those of one type or of all in proportion."""
    best: list[tuple[Plan, Mixed]] = []
    drafts = 0

    def least() -> float:
        return best[-1][1].seconds if best else incumbent

    def limit() -> float:
        return least() if drafts < max(DRAFTS // len(task.contexts), 1) else 0.0

    def offer(draft: Draft) -> float:
        nonlocal drafts
        drafts += 1
        if draft.seconds >= least():
            return draft.seconds
        plan = plan_of(task.contexts, task.cluster, draft, rank_order=task.rank_order)
        iteration = None if check(plan) else fitting(task.contexts, plan, task.known)
        if iteration is None:
            return np.inf
        if iteration.seconds < least():
            best.append((plan, iteration))
        return iteration.seconds

    instance = task.by.instance
    region, counts = instance.roots(Space())[0], instance.compositions(Space())
    hinted = [counts[(counts == np.array(hint)).all(axis=1)] for hint in hints]
    chosen = np.concatenate([counts[instance.samples(counts)], *hinted])
    columns = ColumnPool(instance, region, chosen, incumbent, ordered=False)
    if instance.quickest(region) < incumbent and columns.limit(incumbent) >= instance.total:
        low, _ = shortest(columns.limit, instance.total, instance.quick, incumbent)
        if low * (1.0 + GAP) < incumbent:
            attempt(task.by, region, low, columns, offer, limit, GAP)
    return best[-1] if best else None
