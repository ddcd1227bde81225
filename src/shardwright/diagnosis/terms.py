"""Expected beside measured, term by term, seen from the rank that the others wait for; and the plan with one thing
changed, by the cost model: what that saves, and whether it fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.iteration.lanes import contexts_of
from shardwright.cost.memory.facts import headroom
from shardwright.cost.strategies import Row, plan_of_row, row_of, strategies, values_of
from shardwright.diagnosis.case import Case, costed
from shardwright.errors import SpecError
from shardwright.plans.abilities import framework_problems
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.spec.cluster import NodePool
from shardwright.spec.job import Job
from shardwright.traces.figures import Collective, RankFigures
from shardwright.trainers.runs import runners
from shardwright.units import GIGA

COMPUTE, HOST, DATA, OPTIMIZER = "compute", "host", "data", "optimizer"
TENSOR, CONTEXT, EXPERT, PIPELINE, GRADIENTS = "tensor", "context", "expert", "pipeline", "gradients"
COPIES, STALLS, TALK = "copies", "stalls", "communication"
# What names of process groups say of the dimension, in Megatron-LM, torchtitan, DeepSpeed, FSDP and `train`.
GROUP_WORDS = (
    (EXPERT, ("expert_model", "expert_tensor", "ep", "mesh_ep")),
    (TENSOR, ("tensor", "tp", "mesh_tp")),
    (CONTEXT, ("context", "cp", "mesh_cp")),
    (PIPELINE, ("pipeline", "pp", "mesh_pp", "position_embedding", "embedding")),
    (GRADIENTS, ("gradients", "data", "dp", "fsdp", "dp_shard", "mesh_dp", "mesh_default", "zero")),
)
FIT = 0.9  # probability with which a change must fit, as of plans


@record
class Term:
    """Seconds of a step that go to one thing: as expected, as measured (None where nothing tells), and how much more of
    it something else hides."""

    name: str
    expected_seconds: float
    measured_seconds: float | None = None
    hidden_seconds: float | None = None

    @property
    def excess_seconds(self) -> float | None:
        """Measured less expected."""
        return None if self.measured_seconds is None else self.measured_seconds - self.expected_seconds


def terms(case: Case) -> tuple[Term, ...]:
    """Return the terms of a step. Without a trace only stalls are measured."""
    expected = expected_terms(case)
    measured, hidden = _measured(case, case.critical) if case.critical is not None else ({}, {})
    if TALK in measured:  # groups that the trace does not tell apart
        joined = [name for name in (TENSOR, CONTEXT, EXPERT, GRADIENTS) if name in expected]
        expected[TALK] = sum(expected.pop(name) for name in joined)
        measured[TALK] += sum(measured.pop(name, 0.0) for name in joined)
        hidden[TALK] = hidden.get(TALK, 0.0) + sum(hidden.pop(name, 0.0) for name in joined)
    stalls = sum(seconds for _, seconds in case.stall_seconds)
    if stalls or case.state is not None:
        expected[STALLS], measured[STALLS] = 0.0, stalls
    return tuple(
        Term(
            name=name,
            expected_seconds=expected.get(name, 0.0),
            measured_seconds=measured.get(name),
            hidden_seconds=hidden.get(name),
        )
        for name in dict.fromkeys((*expected, *measured))
        if expected.get(name, 0.0) > 0.0 or measured.get(name)
    )


def expected_terms(case: Case) -> dict[str, float]:
    """Return the terms of the prediction under the names that traces have. With a trace they are those of the stage of
    the rank that the others wait for, which may work less than the busiest."""
    time = case.prediction.time
    expected = {
        COMPUTE: time.forward_seconds + time.backward_seconds + time.recompute_seconds,
        HOST: time.framework_seconds,
        TENSOR: time.tensor_parallel_seconds,
        CONTEXT: time.context_parallel_seconds,
        EXPERT: time.expert_parallel_seconds,
        PIPELINE: time.pipeline_seconds + time.bubble_seconds,
        GRADIENTS: time.data_parallel_seconds,
        OPTIMIZER: time.optimizer_seconds,
        DATA: 0.0,
    }
    rank = case.critical
    busy = None if rank is None else case.expected_compute(rank.rank)
    if rank is not None and busy is not None:
        replica = case.account.replicas[case.stage_of_rank[rank.rank][0]]
        work = (COMPUTE, HOST, TENSOR, CONTEXT, EXPERT)
        whole = sum(expected[name] for name in work)
        for name in work:
            expected[name] *= busy / whole if whole and replica.pipeline_seconds > 1.001 * busy else 1.0
        expected[PIPELINE] = max(replica.pipeline_seconds - busy, 0.0)
    return expected


def dimension_of(case: Case, call: Collective) -> str:
    """Return which parallelism a collective serves: by the name of its group, else by its kind and ranks, else by what
    the plan leaves; `communication` where that leaves several."""
    words = call.group.casefold().replace("-", "_")
    for name, known in GROUP_WORDS:
        if any(word == words or (len(word) > 2 and word in words) for word in known):
            return name
    if call.kind == "send_recv":
        return PIPELINE if any(len(replica.stages) > 1 for replica in case.plan.replicas) else CONTEXT
    sizes = _sizes(case)
    if call.kind == "all_to_all" and sizes.get(EXPERT, 1) > 1:
        return EXPERT
    able = [name for name in (TENSOR, CONTEXT, GRADIENTS) if sizes[name] > 1]
    if call.ranks:
        able = [name for name in able if sizes[name] == call.ranks] or able
    return able[0] if len(able) == 1 else TALK if able else GRADIENTS


def _sizes(case: Case) -> dict[str, int]:
    stages = case.plan.stages
    context = max(stage.context_parallel for stage in stages)
    return {
        TENSOR: max(stage.tensor_parallel for stage in stages),
        CONTEXT: context,
        EXPERT: max(stage.expert_parallel for stage in stages),
        GRADIENTS: case.plan.data_parallel * context,
    }


def _measured(case: Case, rank: RankFigures) -> tuple[dict[str, float], dict[str, float]]:
    measured = {
        COMPUTE: rank.compute_seconds - rank.optimizer_seconds,
        HOST: rank.idle_seconds,
        OPTIMIZER: rank.optimizer_seconds,
        DATA: rank.data_seconds,
        COPIES: rank.copy_seconds,
    }
    hidden: dict[str, float] = {}
    for call in rank.collectives:
        name = dimension_of(case, call)
        measured[name] = measured.get(name, 0.0) + call.exposed_seconds
        hidden[name] = hidden.get(name, 0.0) + call.hidden_seconds
    return measured, hidden


def changed(case: Case, changes: Iterable[Row]) -> Plan | None:
    """Return the fastest legal plan that one of `changes` of its row makes, that a trainer of the run has and that
    fits, or takes no more memory than the one that runs; None where none does, or the plan is not uniform."""
    plan = case.plan
    if not plan.uniform or check(plan):
        return None
    (whole,) = contexts_of(plan, case.efficiency).values()
    context = replace(whole, headroom=headroom(FIT, plan.job))
    row, gpu = values_of(row_of(plan)), whole.pool.gpu.name
    rows = [row]
    for change in changes:
        new = {**row, **change}
        if new == row or new in rows:
            continue
        candidate = plan_of_row(strategies([new]), plan.model, plan.job, plan.cluster, gpu)
        if _runs(candidate, plan):
            rows.append(new)
    if len(rows) == 1:
        return None
    timed = context.timed(strategies(rows))
    rows = [row for row, known in zip(rows, timed, strict=True) if known]
    verdict = evaluate(context, strategies(rows))
    able = verdict.fits | (verdict.peak_bytes <= verdict.peak_bytes[0])
    best = int(np.argmin(np.where(able, verdict.seconds, np.inf)))
    if best == 0:
        return None
    return costed(plan_of_row(strategies([rows[best]]), plan.model, plan.job, plan.cluster, gpu), case.efficiency)


def with_job(case: Case, change: Callable[[Job], Job]) -> Plan | None:
    """Return the plan for another job, which may have a multiple of the samples; None where its framework, the trainers
    of the run or GPUs do not take that."""
    try:
        job = change(case.plan.job)
        more = job.global_batch // case.plan.job.global_batch
        replicas = tuple(replace(part, micro_batches=more * part.micro_batches) for part in case.plan.replicas)
        plan = replace(case.plan, job=job, replicas=replicas, prediction=None)
        return costed(plan, case.efficiency) if _runs(plan, case.plan) else None
    except SpecError:
        return None


def _runs(candidate: Plan, plan: Plan) -> bool:
    """Return whether a plan is legal, and a trainer that runs `plan` runs it, too, where one that we know does."""
    if check(candidate) or any(framework_problems(candidate)):
        return False
    able = runners(plan)
    return not able or not set(able).isdisjoint(runners(candidate))


def with_pools(case: Case, change: Callable[[NodePool], NodePool]) -> Plan:
    """Return the plan on machines of other links."""
    cluster = replace(case.plan.cluster, pools=tuple(change(pool) for pool in case.plan.cluster.pools))
    return costed(replace(case.plan, cluster=cluster, prediction=None), case.efficiency)


@record
class WorseLinks:
    """Links worse than described: in words what they are, and the plan on them."""

    words: str
    plan: Plan

    @property
    def seconds(self) -> float:
        """What a step takes over them."""
        return self.plan.iteration_seconds


SLOWEST_LINKS = 1000.0  # times slower, beyond which links explain nothing
HALVINGS = 12  # of the logarithm of that: to 0.2 %
NOTICED = 1.3  # times slower, from which on links are worth a word; chosen, 1.2 to 1.5
# Bytes a second of a machine that networks reach, from the bottom, by what they most likely are; of data sheets.
NETWORKS = (
    (0.15e9, "Ethernet of 1 Gb/s"),
    (1.5e9, "TCP over Ethernet of 10 Gb/s"),
    (4.0e9, "TCP sockets in place of RDMA, or Ethernet of 25 Gb/s"),
    (14e9, "one network card of 100 Gb/s"),
    (28e9, "one network card of 200 Gb/s"),
    (55e9, "one network card of 400 Gb/s"),
)
PCIE_SHARE = 0.5  # of PCIe's rate that traffic through the host reaches, which is crossed twice; chosen, 0.35 to 0.7


def explaining_links(case: Case, seconds: float) -> WorseLinks | None:
    """Return the links over which a step would take `seconds`: slower ones between machines or, within one, PCIe in
    place of NVLink; None where none would."""
    pools = case.plan.cluster.pools
    if any(pool.nodes > 1 for pool in pools):
        return _slower_network(case, seconds)
    if any(pool.gpus_per_node > 1 and pool.intra_bytes_per_second > 2.0 * _pcie(pool) for pool in pools):
        over = with_pools(case, lambda pool: replace(pool, intra_bytes_per_second=_pcie(pool)))
        links = WorseLinks(words="PCIe in place of NVLink", plan=over)
        return links if abs(math.log(links.seconds / seconds)) < PCIE_NEAR else None
    return None


PCIE_NEAR = 0.2  # log distance of the step over PCIe to what was measured; chosen, 0.1 to 0.3


def _slower_network(case: Case, seconds: float) -> WorseLinks | None:
    def over(factor: float) -> Plan:
        return with_pools(case, lambda p: replace(p, inter_bytes_per_second=p.inter_bytes_per_second / factor))

    low, high = 1.0, SLOWEST_LINKS
    if over(high).iteration_seconds < seconds:
        return None
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if over(middle).iteration_seconds < seconds else (low, middle)
    if high < NOTICED:
        return None
    pool = max(case.plan.cluster.pools, key=lambda p: p.inter_bytes_per_second)
    rate = pool.inter_bytes_per_second / high
    likely = next((words for limit, words in NETWORKS if rate < limit), "")
    words = f"{rate / GIGA:.2g} GB/s between machines instead of {pool.inter_bytes_per_second / GIGA:.3g}"
    return WorseLinks(words=f"{words} ({likely})" if likely else words, plan=over(high))


def _pcie(pool: NodePool) -> float:
    return PCIE_SHARE * pool.gpu.pcie_bytes_per_second
