"""Random legal plans, uniform and mixed, for property tests."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.golden.plans import H100, cluster_of

from shardwright import Job, Model
from shardwright.exporters.megatron.layout import stage_ranges
from shardwright.plans.plan import (
    OptimizerPlan,
    Overlap,
    Plan,
    Prediction,
    Recompute,
    Replica,
    Schedule,
    Stage,
    StageMemory,
    TimeBreakdown,
)
from shardwright.spec.layer import Attention, LatentAttention, Layer, Mlp, Moe

SMALL = st.sampled_from([1, 2, 4])
FLAG = st.booleans()
POSITIVE = st.floats(min_value=0, max_value=1e18, allow_nan=False)


@st.composite
def models(draw: Any) -> Model:
    """Models that pretrain_gpt.py has arguments for; sizes divide by every degree that `uniform_plans` draws."""
    head_dim = draw(st.sampled_from([32, 128]))
    latent = draw(
        st.sampled_from([None, None, LatentAttention(query_rank=None, kv_rank=64, nope_head_dim=16, rope_head_dim=8)])
    )
    bias = draw(FLAG) if latent is None else False
    if latent is None:
        kv_heads = draw(st.sampled_from([1, 4, 16]))
        attention = Attention(
            heads=16, kv_heads=kv_heads, head_dim=head_dim, value_head_dim=head_dim, qk_norm=draw(FLAG)
        )
    else:
        latent = replace(latent, query_rank=draw(st.sampled_from([None, 96])))
        attention = Attention(heads=16, kv_heads=16, head_dim=24, value_head_dim=32, latent=latent)
    experts = draw(FLAG)
    bias = bias and not experts
    attention = replace(attention, qkv_bias=bias or draw(FLAG), out_bias=bias)
    gated = draw(FLAG)
    mlp = Mlp(width=draw(st.sampled_from([512, 1024])), gated=gated, bias=bias)
    shared = draw(st.sampled_from([0, 256]))
    moe = Moe(
        experts=8,
        top_k=draw(st.sampled_from([1, 2])),
        expert_width=256,
        gated=gated,
        shared_width=shared,
        shared_gate=shared > 0 and draw(FLAG),
        router_bias=draw(FLAG),
    )
    window = draw(st.sampled_from([None, None, 64]))
    pattern = draw(st.lists(st.tuples(FLAG, FLAG), min_size=1, max_size=12))
    if experts and not any(has for has, _ in pattern):
        pattern[0] = (True, pattern[0][1])
    layers = tuple(
        Layer(
            attention=replace(attention, window=window if near else None),
            mlp=None if experts and has else mlp,
            moe=moe if experts and has else None,
        )
        for has, near in pattern
    )
    position = draw(st.sampled_from(["rope", "none", "learned"]))
    return Model(
        name="random",
        family="test",
        hidden=512,
        vocab=draw(st.integers(min_value=1, max_value=10**6)),
        layers=layers,
        norm=draw(st.sampled_from(["rmsnorm", "layernorm"])),
        position=position,
        rotary_base=float(draw(st.integers(min_value=1, max_value=10**7))) if position == "rope" else 10000.0,
        max_position=4096,
        learned_positions=4096 if position == "learned" else 0,
        tied_embeddings=draw(FLAG),
        dropout=draw(FLAG),
        mtp_layers=draw(st.sampled_from([0, 1])) if position != "learned" else 0,
        activation=draw(st.sampled_from(["silu", "quick_gelu"] if gated else ["gelu", "squared_relu"])),
    )


@st.composite
def uniform_plans(draw: Any) -> Plan:
    """Legal plans that Megatron-LM can express."""
    model = draw(models())
    has_experts = model.has_experts
    tp, cp, pp, dp = draw(SMALL), draw(SMALL), draw(st.sampled_from([1, 2, 3, 4])), draw(SMALL)
    if any(kind.self_attention.latent and kind.self_attention.window for kind in model.kinds):
        cp = 1
    chunks = draw(st.sampled_from([1, 1, 2, 3])) if pp > 1 else 1
    cuts = draw(st.lists(st.integers(0, len(model.layers)), min_size=pp * chunks - 1, max_size=pp * chunks - 1))
    ends = [0, *sorted(cuts), len(model.layers)]
    counts = [end - start for start, end in itertools.pairwise(ends)]
    biased = any(kind.self_attention.out_bias for kind in model.kinds)
    etp = draw(st.sampled_from([1, tp])) if has_experts and not biased else 1
    widths = [n for n in (1, 2, 4, 8) if (tp * cp * dp) % (n * etp) == 0]
    ep = draw(st.sampled_from(widths)) if has_experts else 1
    inside = draw(FLAG) and (pp == 1 or tp * cp == (ep * etp if has_experts else tp))
    micro_batch, micro_batches = draw(SMALL), pp * draw(st.sampled_from([1, 3]))
    sharding = draw(st.sampled_from(["none", "zero1", "zero2", "zero3"]))
    grad_reduce, sequence_parallel = draw(FLAG), tp > 1 and (has_experts or draw(FLAG))
    full = Recompute(granularity="full", method=draw(st.sampled_from(["uniform", "block"])), layers=1)
    recompute = draw(st.sampled_from([Recompute(), Recompute(granularity="selective"), full]))
    stages = tuple(
        Stage(
            gpu="H100-SXM",
            tensor_parallel=tp,
            context_parallel=cp,
            expert_parallel=ep,
            expert_tensor_parallel=etp,
            layers=ranges,
            recompute=recompute,
        )
        for ranges in stage_ranges(counts, pp)
    )
    precision = draw(st.sampled_from(["bf16", "fp16", "fp8"]))
    job = Job(
        global_batch=micro_batch * micro_batches * dp,
        seq_len=1024,
        tokens=draw(st.sampled_from([None, 1024.0 * micro_batch * micro_batches * dp * 7])),
        precision=precision,
        fp8_recipe=draw(st.sampled_from(["delayed", "tensorwise", "blockwise"])) if precision == "fp8" else None,
    )
    return Plan(
        model=model,
        job=job,
        cluster=cluster_of(32),
        micro_batch=micro_batch,
        schedule=Schedule(kind="interleaved" if chunks > 1 else "1f1b", virtual_stages=chunks),
        replicas=(Replica(count=dp, micro_batches=micro_batches, stages=stages),),
        optimizer=OptimizerPlan(
            sharding=sharding, offload=draw(st.sampled_from([0.0, 0.3, 1.0])) if sharding != "none" else 0.0
        ),
        overlap=Overlap(
            grad_reduce=grad_reduce,
            param_gather=grad_reduce and sharding != "none" and draw(FLAG),
            tensor_parallel=sequence_parallel and draw(FLAG),
            pipeline=chunks > 1 and (pp == 2 or draw(FLAG)),
        ),
        sequence_parallel=sequence_parallel,
        flash_attention=draw(FLAG) or cp > 1,
        rank_order="tp-cp-ep-pp-dp" if inside else "tp-cp-ep-dp-pp",
    )


def time_breakdowns() -> st.SearchStrategy[TimeBreakdown]:
    return st.builds(TimeBreakdown, **dict.fromkeys(TimeBreakdown.__dataclass_fields__, POSITIVE))


def stage_memories() -> st.SearchStrategy[StageMemory]:
    return st.builds(StageMemory, **dict.fromkeys(StageMemory.__dataclass_fields__, POSITIVE))


def predictions() -> st.SearchStrategy[Prediction]:
    rows = st.lists(stage_memories(), max_size=3).map(tuple)
    return st.builds(
        Prediction,
        iteration_seconds=POSITIVE,
        interval=st.tuples(POSITIVE, POSITIVE),
        tokens_per_second=POSITIVE,
        mfu=POSITIVE,
        time=time_breakdowns(),
        memory=st.lists(rows, max_size=2).map(tuple),
        fit_probability=st.floats(0, 1),
        dollars_per_hour=st.none() | POSITIVE,
        dollars_total=st.none() | POSITIVE,
        hours_total=st.none() | POSITIVE,
        ideal_seconds=st.none() | POSITIVE,
        lower_bound_seconds=st.none() | POSITIVE,
        busiest_stage=st.integers(0, 9),
    )


@st.composite
def mixed_plans(draw: Any) -> Plan:
    """Plans with replicas of different depth on two GPU types, costed."""
    plan = draw(uniform_plans())
    (replica,) = plan.replicas
    other = replace(replica.stages[0], gpu="other", layers=((0, len(plan.model.layers)),))
    (pool,) = plan.cluster.pools
    cluster = replace(plan.cluster, pools=(pool, replace(pool, gpu=replace(H100, name="other"), price=None, spot=True)))
    replicas = (replica, Replica(count=1, micro_batches=5, stages=(other,)))
    label, prediction = draw(st.text(max_size=10)), draw(st.none() | predictions())
    return replace(plan, cluster=cluster, replicas=replicas, label=label, prediction=prediction)


@st.composite
def layered_plans(draw: Any) -> Plan:
    """Legal plans of uneven FSDP: one to four kinds of GPU shares on two types."""
    base = draw(mixed_plans())
    names = ("H100-SXM", "other")
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    replicas, waves = [], draw(st.integers(1, 3))
    for index, count in enumerate(counts):
        micro_batches = waves * draw(st.integers(1, 3))
        stage = replace(base.replicas[1].stages[0], gpu=names[index % 2], tensor_parallel=1, context_parallel=1)
        stage = replace(stage, expert_parallel=1, expert_tensor_parallel=1, recompute=Recompute())
        rows, state = draw(st.integers(micro_batches, 12)), draw(st.integers(0, 50))
        replicas.append(Replica(count=count, micro_batches=micro_batches, stages=(stage,), rows=rows, state=state))
    parts = sum(replica.count * (replica.state or 0) for replica in replicas)
    last = replicas.pop()
    state = (last.state or 0) + (1 if parts == 0 else 0)
    replicas.append(replace(last, state=state))
    parts = sum(replica.count * (replica.state or 0) for replica in replicas)
    rows_in_all = sum(replica.count * (replica.rows or 0) for replica in replicas)
    return replace(
        base,
        replicas=tuple(replicas),
        job=replace(base.job, global_batch=rows_in_all),
        micro_batch=max(replica.sizes(1)[0] for replica in replicas),
        schedule=Schedule(kind="layered", waves=waves),
        optimizer=OptimizerPlan(sharding="zero3", parts=parts),
        overlap=Overlap(grad_reduce=True, param_gather=True),
        sequence_parallel=False,
    )


@cache
def collected(count: int) -> tuple[Plan, ...]:
    """Return so many uniform plans, the same in every run."""
    plans: list[Plan] = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(uniform_plans())
    def collect(plan: Plan) -> None:
        plans.append(plan)

    collect()
    return tuple(plans)
