"""The plan with one thing changed, by the cost model: what that saves, and whether it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from shardwright.cost.iteration.evaluate import evaluate
from shardwright.cost.iteration.lanes import contexts_of
from shardwright.cost.memory.fit_probability import headroom
from shardwright.cost.strategies import Row, plan_of_row, row_of, strategies, values_of
from shardwright.diagnosis.case import Case, costed
from shardwright.errors import SpecError
from shardwright.plans.abilities import framework_problems
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.spec.cluster import NodePool
from shardwright.spec.job import Job

FIT = 0.9  # probability with which a change must fit, as of plans


def changed(case: Case, changes: Iterable[Row]) -> Plan | None:
    """Return the fastest legal plan that one of `changes` of its row makes and that fits, or takes no more memory than
    the one that runs; None where none does, or the plan is not uniform."""
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
        if not check(candidate) and not any(framework_problems(candidate)):
            rows.append(new)
    if len(rows) == 1:
        return None
    timed = context.timed(strategies(rows))
    rows = [row for row, known in zip(rows, timed, strict=True) if known]
    verdict = evaluate(context, strategies(rows))
    able = verdict.fits | (verdict.peak_bytes <= verdict.peak_bytes[0])
    seconds = np.where(able, verdict.seconds, np.inf)
    best = int(np.argmin(seconds))
    if best == 0:
        return None
    return costed(plan_of_row(strategies([rows[best]]), plan.model, plan.job, plan.cluster, gpu), case.efficiency)


def with_job(case: Case, change: Callable[[Job], Job]) -> Plan | None:
    """Return the plan for another job; None where its framework or GPUs do not take that."""
    try:
        plan = replace(case.plan, job=change(case.plan.job), prediction=None)
        return None if check(plan) or any(framework_problems(plan)) else costed(plan, case.efficiency)
    except SpecError:
        return None


def with_pools(case: Case, change: Callable[[NodePool], NodePool]) -> Plan:
    """Return the plan on machines of other links."""
    cluster = replace(case.plan.cluster, pools=tuple(change(pool) for pool in case.plan.cluster.pools))
    return costed(replace(case.plan, cluster=cluster, prediction=None), case.efficiency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Degraded:
    """Links worse than described: what they are instead, and the plan on them."""

    words: str
    scope: str
    plan: Plan


TCP_BYTES_PER_SECOND, TCP_LATENCY = 2.5e9, 50e-6  # of a machine over sockets; chosen, 1.2 to 5 GB/s, 30 to 100 µs
PCIE_SHARE = 0.5  # of PCIe's rate that traffic through the host reaches, which is crossed twice; chosen, 0.35 to 0.7


def degraded(case: Case) -> tuple[Degraded, ...]:
    """Return the plan on links that machines have where something is set up wrong: TCP sockets in place of RDMA, one
    network card of all, PCIe in place of NVLink."""
    pools = case.plan.cluster.pools
    rows: list[tuple[str, str, Callable[[NodePool], NodePool]]] = []
    if any(pool.nodes > 1 for pool in pools):
        rows.append(("TCP sockets in place of RDMA", "between", _sockets))
        rails = max(pool.gpus_per_node for pool in pools)
        if rails > 1:
            words = f"one network card of {rails}"
            rows.append(
                (words, "between", lambda p: replace(p, inter_bytes_per_second=p.inter_bytes_per_second / rails))
            )
    if any(pool.gpus_per_node > 1 and pool.intra_bytes_per_second > 2.0 * _pcie(pool) for pool in pools):
        rows.append(("PCIe in place of NVLink", "inside", lambda p: replace(p, intra_bytes_per_second=_pcie(p))))
    return tuple(Degraded(words=words, scope=scope, plan=with_pools(case, change)) for words, scope, change in rows)


def _slower(pool: NodePool, factor: int) -> NodePool:
    return replace(pool, inter_bytes_per_second=pool.inter_bytes_per_second / factor)


def _sockets(pool: NodePool) -> NodePool:
    return replace(
        pool,
        inter_bytes_per_second=min(TCP_BYTES_PER_SECOND, pool.inter_bytes_per_second),
        inter_latency_seconds=max(TCP_LATENCY, pool.inter_latency_seconds),
    )


def _pcie(pool: NodePool) -> float:
    return PCIE_SHARE * pool.gpu.pcie_bytes_per_second
