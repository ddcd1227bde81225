"""Random legal plans for hypothesis: replicas of any depth, split, degree and number of micro-batches."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import strategies as st
from tests.golden.plans import cluster_of
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright.plans.plan import Plan, Recompute, Replica, Stage
from shardwright.spec.model import Model

KINDS = (
    Recompute(),
    Recompute(granularity="selective"),
    Recompute(granularity="full", method="uniform", layers=2),
    Recompute(granularity="full", method="block", layers=1),
)


@st.composite
def plans(draw: st.DrawFn, *, largest_tp: int = 4, largest_count: int = 2) -> Plan:
    """A legal plan, on as many GPUs as it takes."""
    family = draw(st.sampled_from(["llama", "gpt2", "qwen3"]))
    experts = draw(st.sampled_from([0, 4])) * (family != "gpt2")
    model = tiny_model(draw(st.integers(2, 7)), family=family, tied=draw(st.booleans()), experts=experts)
    virtual = draw(st.sampled_from([1, 1, 2]))
    degrees = [tp for tp in (1, 2, 4) if tp <= largest_tp]
    replicas = [draw(_replicas(model, virtual, degrees, largest_count)) for _ in range(draw(st.integers(1, 3)))]
    split = any(stage.tensor_parallel > 1 for item in replicas for stage in item.stages)
    plan = plan_of(
        model,
        *replicas,
        micro_batch=draw(st.integers(1, 2)),
        virtual_stages=virtual,
        sequence_parallel=split and draw(st.booleans()),
        sharding=draw(st.sampled_from(["none", "zero1"])),
    )
    return replace(plan, cluster=cluster_of(16))


@st.composite
def _replicas(draw: st.DrawFn, model: Model, virtual: int, degrees: list[int], largest_count: int) -> Replica:
    depth, count = draw(st.integers(1 if virtual == 1 else 2, 3)), draw(st.integers(1, largest_count))
    layers, chunks = len(model.layers), depth * virtual
    cuts = sorted(draw(st.lists(st.integers(0, layers), min_size=chunks - 1, max_size=chunks - 1)))
    ranges = list(itertools.pairwise([0, *cuts, layers]))
    cp = draw(st.sampled_from([1, 1, 2]))
    stages = [draw(_stages(ranges[number::depth], count, cp, degrees, model)) for number in range(depth)]
    groups = draw(st.integers(1, 4 if virtual == 1 else 2))
    return replica(*stages, count=count, micro_batches=groups * (depth if virtual > 1 else 1))


@st.composite
def _stages(
    draw: st.DrawFn, ranges: list[tuple[int, int]], count: int, cp: int, degrees: list[int], model: Model
) -> Stage:
    tp = draw(st.sampled_from(degrees))
    etp = draw(st.sampled_from([1, tp]))
    shares = [n for n in (1, 2, 4) if count * cp * tp // etp % n == 0] if model.layers[0].moe else [1]
    recompute, ep = draw(st.sampled_from(KINDS)), draw(st.sampled_from(shares))
    return stage(*ranges, tp=tp, cp=cp, etp=etp, ep=ep, recompute=recompute)
