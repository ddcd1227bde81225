"""Random small planning problems whose whole space can be listed, with limits that matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from tests.cost.samples import attention, context, gpu, pool
from tests.search import oracle_uniform as oracle

from shardwright import Job, Model
from shardwright.cost.context import Context
from shardwright.cost.iteration.batch import Verdict, evaluate
from shardwright.cost.money import pool_stretch
from shardwright.cost.strategies import COLUMNS, Strategies
from shardwright.spec.cluster import NodePool
from shardwright.spec.layer import Attention, LatentAttention, Layer, Mlp, Moe


@dataclass(frozen=True)
class Problem:
    """`memory` and `limit` say where, between the leanest and the fattest candidate and between the fastest and the
    slowest that fits, the capacity and a deadline or budget lie (None: above all)."""

    context: Context
    pins: oracle.Pins
    memory: float | None
    limit: float | None
    limit_is_budget: bool


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers that spread evenly over the orders of magnitude from 10^low to 10^high."""
    return st.integers(0, 40).map(lambda step: 10 ** (low + (high - low) * step / 40))


@st.composite
def attentions(draw: st.DrawFn, *, causal: bool) -> Attention:
    heads, head_dim = draw(st.sampled_from([1, 2, 4, 4, 6, 8, 8])), draw(st.sampled_from([64, 128]))
    if draw(st.integers(0, 7)) == 0:
        latent = LatentAttention(
            query_rank=draw(st.sampled_from([None, 192])), kv_rank=64, nope_head_dim=64, rope_head_dim=32
        )
        return Attention(heads=heads, kv_heads=heads, head_dim=96, value_head_dim=64, causal=causal, latent=latent)
    kv_heads = draw(st.sampled_from([kv for kv in range(1, heads + 1) if heads % kv == 0]))
    window = 64 if draw(st.integers(0, 7)) == 0 else None
    return attention(heads, head_dim, kv_heads, causal=causal, window=window)


@st.composite
def kinds(draw: st.DrawFn, *, causal: bool, experts: bool) -> Layer:
    if not experts:
        mlp = Mlp(width=draw(st.sampled_from([512, 2048, 3000, 16384])), gated=draw(st.booleans()))
        return Layer(attention=draw(attentions(causal=causal)), mlp=mlp, moe=None)
    moe = Moe(
        experts=draw(st.sampled_from([2, 4, 6, 8])),
        top_k=draw(st.integers(1, 2)),
        gated=draw(st.booleans()),
        expert_width=draw(st.sampled_from([512, 1500, 8192])),
        shared_width=draw(st.sampled_from([0, 0, 512, 750])),
    )
    return Layer(attention=draw(attentions(causal=causal)), mlp=None, moe=moe)


@st.composite
def models(draw: st.DrawFn) -> Model:
    causal = draw(st.integers(0, 9)) > 0
    first = draw(kinds(causal=causal, experts=draw(st.integers(0, 3)) == 0))
    layers = [first] * draw(st.sampled_from([1, 2, 3, 4, 5, 6, 8]))
    if draw(st.integers(0, 2)) == 0:
        other = draw(kinds(causal=causal, experts=draw(st.booleans())))
        layers = [draw(st.sampled_from([first, other])) for _ in layers]
    return Model(
        name="small",
        family="small",
        hidden=draw(st.sampled_from([256, 768, 2048, 6144])),
        vocab=draw(st.sampled_from([1000, 32000, 200000])),
        layers=tuple(layers),
        norm="layernorm",
        tied_embeddings=draw(st.booleans()),
        dropout=draw(st.booleans()),
        mtp_layers=draw(st.sampled_from([0] * 5 + [1])),
    )


@st.composite
def pools(draw: st.DrawFn) -> NodePool:
    per_node = draw(st.sampled_from([1, 2, 2, 3, 4, 4, 8, 8]))
    nodes = draw(st.integers(1, 16 // per_node))
    one_domain = draw(st.integers(0, 4)) == 0
    return pool(
        nodes,
        per_node,
        price=draw(st.sampled_from([1.0, 20.0])),
        domain_gpus=nodes * per_node if one_domain else per_node,
        gpu=gpu(pcie_bytes_per_second=draw(powers(9, 11))),
        intra_bytes_per_second=draw(powers(9.5, 12)),
        intra_latency_seconds=draw(powers(-6, -4)),
        inter_bytes_per_second=draw(powers(9, 12)),
        inter_latency_seconds=draw(powers(-6, -3.5)),
        host_memory_bytes=draw(st.sampled_from([1e12, 1e12, 3e9, 3e10])),
        host_memory_bytes_per_second=draw(powers(10, 12)),
    )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    return Job(
        global_batch=draw(st.sampled_from([1, 2, 3, 4, 6, 8, 8, 12, 12, 16, 16])),
        seq_len=draw(st.sampled_from([90, 128, 1024, 1024, 4096])),
        tokens=1e9,
        precision=draw(st.sampled_from(["bf16", "bf16", "bf16", "fp8", "fp32"])),
        optimizer=draw(st.sampled_from(["adam", "adam", "sgd", "muon"])),
        framework=draw(st.sampled_from(["megatron", "megatron", "deepspeed", "fsdp", "train"])),
        objective=draw(st.sampled_from(["time", "time", "cost"])),
    )


PIPELINES: tuple[oracle.Pins, ...] = (
    {"vpp": (2, 3)},
    {"vpp": (2,), "pp": (3, 4)},
    {"vpp": (2,), "tp": (1,), "cp": (1,)},
    {"pp": (3, 4, 5, 6)},
    {"pp": (4, 6), "tp": (1,), "cp": (1,)},
    {"rank_order": (1,)},
    {"pp": (2,), "tp": (1, 2)},
    {"zero_bubble": (0, 1)},
    {"zero_bubble": (1, 0), "pp": (2, 3, 4)},
)
UNUSUAL: tuple[oracle.Pins, ...] = (
    {"first_layers": (0, 3)},
    {"last_layers": (1,)},
    {"first_layers": (1,), "last_layers": (2, 0)},
    {"vpp": (2, 3)},
    {"offload": (0.3,)},
    {"sharding": (1,)},
    {"recompute_layers": (2,)},
    {"recompute": (1, 3)},
    {"overlap_param": (1,)},
    {"gpus": (4, 6)},
)


@st.composite
def problems(draw: st.DrawFn, *, most: int) -> Problem:
    """A problem of at most `most` candidates (or a few, if a single layout has more): axes are pinned one after the
    other, to a value that the space has and sometimes a second one, until it is small enough."""
    where = context(draw(models()), draw(pools()), draw(jobs()))
    pins = dict(draw(st.sampled_from([*PIPELINES, *PIPELINES, *UNUSUAL])) if draw(st.booleans()) else {})
    layouts = list(oracle.layouts(where, pins))
    if not layouts and draw(st.integers(0, 3)):
        pins, layouts = {}, list(oracle.layouts(where, {}))
    if layouts:
        anchor = dict(zip(oracle.LAYOUT, draw(st.sampled_from(layouts)), strict=True))
        choices = oracle.switches(where, pins, tuple(anchor.values()))
        if all(choices):
            values = [value for choice in choices for value in draw(st.sampled_from(choice))]
            recompute = values[COLUMNS.index("recompute") - len(oracle.LAYOUT)]
            apart = oracle.schedules(where, pins, tuple(anchor.values()), recompute)
            anchor |= dict(zip(COLUMNS[8:], [*values, apart[-1]], strict=True))
            _shrink(where, pins, anchor, draw(st.permutations([axis for axis in COLUMNS if axis not in pins])), most)
    return Problem(
        context=where,
        pins=pins,
        memory=draw(st.sampled_from([None, -1.0, 0.0, 0.0, *(step / 40 for step in range(1, 30))])),
        limit=draw(st.sampled_from([None, None, -1.0, 0.1, 0.5])),
        limit_is_budget=draw(st.booleans()),
    )


def _shrink(
    where: Context, pins: dict[str, tuple[float, ...]], anchor: dict[str, float], order: Sequence[str], most: int
) -> None:
    for place, axis in enumerate(order):
        if oracle.size(where, pins, most) <= most:
            return
        more = set() if place % 3 else {0.5, 1.0} if axis == "offload" else {1, 2}
        pins[axis] = (anchor[axis], *(more - {anchor[axis]}))


def limited(problem: Problem, verdict: Verdict) -> Context:
    """Return the problem's context with the capacity and the deadline or budget that it asks for, given the verdict
    on all its candidates without limits."""
    where, peaks = problem.context, verdict.peak_bytes
    capacity = _between(peaks, problem.memory)
    where = replace(where, pool=replace(where.pool, memory_bytes=capacity))
    fitting = np.flatnonzero(verdict.fits & (peaks <= capacity))
    if problem.limit is None or not len(fitting) or where.job.iterations is None:
        return where
    hours = verdict.seconds * where.job.iterations / 3600 * longer(where, verdict)
    if problem.limit_is_budget:
        machines = np.ceil(verdict.rows.gpus / where.pool.gpus_per_node)
        dollars = hours * machines * (where.pool.dollars_per_node_hour or 0.0)
        return replace(where, job=replace(where.job, budget_dollars=_between(dollars[fitting], problem.limit)))
    return replace(where, job=replace(where.job, deadline_hours=_between(hours[fitting], problem.limit)))


def _between(values: np.ndarray, share: float | None) -> float:
    """Return a quantile of `values`, off all of them by more than rounding; below or above all for -1 and None."""
    if not len(values):
        return 1e12
    if share is None:
        return 2 * float(values.max())
    return 0.999 * float(values.min()) if share < 0 else (1 + 1e-7) * float(np.quantile(values, share))


def solved(problem: Problem) -> tuple[Context, Verdict]:
    """Return the limited context and the verdict on every candidate (`fits` says whether it keeps all limits)."""
    free = replace(problem.context, pool=replace(problem.context.pool, memory_bytes=1e15))
    verdict = evaluate(free, oracle.candidates(free, problem.pins))
    where = limited(problem, verdict)
    job, seconds = where.job, verdict.seconds
    fits = verdict.fits & (verdict.peak_bytes <= where.pool.memory_bytes)
    hours = seconds * (job.iterations or 0.0) / 3600 * longer(where, verdict)
    if job.deadline_hours is not None:
        fits &= hours <= job.deadline_hours
    if job.budget_dollars is not None:
        fits &= hours * dollars_per_hour(where, verdict) <= job.budget_dollars
    return where, replace(verdict, fits=fits)


def dollars_per_hour(where: Context, verdict: Verdict) -> np.ndarray:
    return np.ceil(verdict.rows.gpus / where.pool.gpus_per_node) * (where.pool.dollars_per_node_hour or 0.0)


def values(where: Context, verdict: Verdict) -> np.ndarray:
    """Return what the job minimises: seconds or dollars of an iteration."""
    if where.job.objective == "time":
        return verdict.seconds
    return verdict.seconds / 3600 * dollars_per_hour(where, verdict) * longer(where, verdict)


def longer(where: Context, verdict: Verdict) -> np.ndarray:
    """Return by what failures lengthen a run on the machines of each row; 1 where it has no length."""
    if where.job.tokens is None:
        return np.ones(len(verdict.seconds))
    machines = np.ceil(verdict.rows.gpus / where.pool.gpus_per_node).astype(np.int64)
    return pool_stretch(where.model, where.job, where.pool, machines)


def some_candidates(problem: Problem, most: int) -> Strategies:
    """Return up to `most` candidates from all over the space."""
    rows = oracle.candidates(problem.context, problem.pins)
    return rows.take(slice(None, None, len(rows) // most + 1))
