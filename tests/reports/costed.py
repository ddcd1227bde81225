"""The golden plans with predictions made up by hand, so that tests of words need neither search nor cost model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.golden.plans import PLANS

from shardwright.cost.money import run_stretch
from shardwright.plans.findings import Cause, Rejection
from shardwright.plans.plan import Plan, Prediction, StageMemory, TimeBreakdown
from shardwright.plans.ranking import Baseline, Ranking, SearchReport

GIB = 1024.0**3
SECONDS = {
    "forward_seconds": 4.0,
    "backward_seconds": 8.0,
    "recompute_seconds": 0.0,
    "tensor_parallel_seconds": 1.0,
    "context_parallel_seconds": 0.0,
    "expert_parallel_seconds": 0.0,
    "pipeline_seconds": 0.25,
    "bubble_seconds": 1.5,
    "data_parallel_seconds": 0.25,
    "optimizer_seconds": 0.0,
}
SEARCH = SearchReport(
    candidates=1000,
    costed=10,
    seconds=0.5,
    rejected=((Rejection(Cause.MEMORY), 700), (Rejection(Cause.RULE, "no tp"), 290)),
    phases=(("enumerate", 0.2), ("refine", 0.3)),
)


def memory_of(gib: float, capacity: float = 80.0) -> StageMemory:
    """A stage of `gib` GiB, half of it activations."""
    parts = {"weights": 0.1, "gradients": 0.15, "optimizer": 0.1, "activations": 0.5, "logits": 0.05, "buffers": 0.05}
    terms = {f"{name}_bytes": share * gib * GIB for name, share in parts.items()}
    return StageMemory(**terms, context_bytes=0.05 * gib * GIB, capacity_bytes=capacity * GIB)


def costed(
    name: str = "llama-2-70b-interleaved",
    *,
    seconds: dict[str, float] | None = None,
    gib: tuple[float, ...] = (),
    dollars_per_hour: float | None = 3000.0,
    job: dict[str, Any] | None = None,
    **changes: Any,
) -> Plan:
    """A golden plan, changed, with a prediction: terms in seconds, GiB of each stage (the last one repeats)."""
    plan = replace(PLANS[name], **changes)
    plan = replace(plan, job=replace(plan.job, **(job or {})))
    time = TimeBreakdown(**(SECONDS | (seconds or {})))
    total, stages = time.total_seconds, len(plan.replicas[0].stages)
    sizes = (*gib, *((gib or (60.0,))[-1:] * stages))[:stages]
    hours = None if plan.job.iterations is None else run_stretch(plan) * plan.job.iterations * total / 3600
    prediction = Prediction(
        iteration_seconds=total,
        interval=(0.9 * total, 1.2 * total),
        tokens_per_second=plan.job.tokens_per_iteration / total,
        mfu=0.5,
        time=time,
        memory=(tuple(memory_of(size) for size in sizes),),
        fit_probability=0.0 if max(sizes) > 80.0 else 0.95,
        dollars_per_hour=dollars_per_hour,
        dollars_total=None if hours is None or dollars_per_hour is None else hours * dollars_per_hour,
        hours_total=hours,
        lower_bound_seconds=0.5 * total,
        busiest_stage=1,
    )
    return plan.costed(prediction)


def flat(text: str) -> str:
    """Return a text without its line breaks and indents, to look for words in."""
    return " ".join(text.split())


def ranking_of(*plans: Plan, baselines: tuple[Baseline, ...] = ()) -> Ranking:
    """A ranking of plans, best first."""
    return Ranking(plans=plans, baselines=baselines, search=SEARCH)
