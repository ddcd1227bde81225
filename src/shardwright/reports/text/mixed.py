"""A plan whose replicas or stages differ, in words: its replicas, idle GPUs, and how far from the best it can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from shardwright.cost.compute.efficiency import computes
from shardwright.plans.abilities import job_problems
from shardwright.plans.findings import MixedPlans, SeveralMakers
from shardwright.plans.plan import Plan, Recompute, Replica, Stage
from shardwright.plans.ranking import Ranking, SearchReport
from shardwright.reports.text import strategy
from shardwright.reports.words import in_words
from shardwright.rows import holding
from shardwright.spec.cluster import Gpu
from shardwright.spec.job import Job
from shardwright.units import clock, counted, format_dollars

WIDE = 0.05  # gap that leaves room for another plan worth having
ALIKE = 0.0005  # parts of the time that are the same in words
MOST_RUNS = 6  # groups of equal stages that a line shows


def gpu_words(plan: Plan) -> str:
    """Return the GPU types of a plan with how many it uses: 32 A100-SXM-40 + 96 V100-SXM2."""
    return " + ".join(f"{count} {name}" for name, count in plan.gpus_by_type.items())


def idle(plan: Plan) -> Counter[str]:
    """Return how many GPUs of each type of the cluster a plan leaves idle."""
    return plan.cluster.gpus_by_type - plan.gpus_by_type


def idle_words(plan: Plan) -> str:
    """Return the GPUs that a plan leaves idle; nothing if it uses all."""
    unable = {pool.gpu.name: _unable(pool.gpu, plan.job) for pool in plan.cluster.pools}
    return "; ".join(f"{count} {name}{unable[name]}" for name, count in idle(plan).items())


def _unable(gpu: Gpu, job: Job) -> str:
    """Return why no plan for a job has a GPU, nothing where some might."""
    if not computes(gpu, job.precision):
        return f", which cannot compute in {job.precision}"
    return f", on which {job.framework} does not run this job" if any(job_problems(gpu, job)) else ""


def idle_sentence(ranking: Ranking) -> str:
    """Return why the best plan leaves GPUs idle, nothing if it uses all: whether plans with them were looked at, and
    how much better one could be."""
    best = ranking.best
    words, left = idle_words(best), idle(best)
    if not words:
        return ""
    able = any(not _unable(pool.gpu, best.job) for pool in best.cluster.pools if pool.gpu.name in left)
    return f"{words}: left idle" + (f", as {_why_idle(ranking)}" if able else "") + "."


def _why_idle(ranking: Ranking) -> str:
    unsearched = [kind for kind in ranking.search.not_covered if isinstance(kind, MixedPlans | SeveralMakers)]
    if unsearched:
        return f"{in_words(unsearched[0])}, were not searched"
    better = "faster" if ranking.best.job.objective == "time" else "cheaper"
    them = "it" if sum(idle(ranking.best).values()) == 1 else "them"
    if ranking.passed_over is not None and idle(ranking.passed_over.plan) != idle(ranking.best):
        return f"a {better} plan with {them}, named below, gains less than --indifference"
    words = f"no {better} plan with {them} was found"
    if ranking.search.gap is None or ranking.search.gap <= WIDE:
        return words
    room, passed_over = 1.0 - 1.0 / (1.0 + ranking.search.gap), ranking.passed_over
    if passed_over is not None and room <= passed_over.saving + ALIKE:
        return f"{words}; by the proof none is better than the plan passed over, named below"
    return f"{words}; by the proof there may be one that is better by up to {room:.0%}"


def settings(plan: Plan) -> list[tuple[str, str]]:
    """Return the strategy of a mixed plan in labelled lines."""
    shared = f"micro-batches of {plan.micro_batch}, shared by {counted(plan.data_parallel, 'replica')}"
    kind, context = "zero bubble" if plan.schedule.weights_apart else "1F1B", plan.stages[0].context_parallel
    labels = ("replicas", *[""] * len(plan.replicas))
    return [
        ("GPUs", f"{plan.gpus}: {gpu_words(plan)}; rank order {plan.rank_order}"),
        ("batch", f"{plan.job.global_batch} = {plan.job.global_batch // plan.micro_batch} {shared}"),
        *zip(labels, map(replica_words, plan.replicas), strict=False),
        ("pipeline", f"{kind}; the tensor-parallel degree of a stage is in front of its GPU type"),
        *holding((context > 1, ("context", f"context parallel {context}, of every stage"))),
        *strategy.experts_setting(plan),
        *strategy.shared_settings(plan),
    ]


def replica_words(replica: Replica) -> str:
    """Return one kind of replica: 4 × 17 micro-batches: V100 5 layers → 2 × A100 14 layers."""
    size = counted(replica.micro_batches, "micro-batch")
    runs = [(stage, len(list(group))) for stage, group in groupby(replica.stages, _alike)]
    shown = [_stages_words(*run) for run in runs[:MOST_RUNS]]
    if len(runs) > MOST_RUNS:
        shown.append(f"… {sum(number for _, number in runs[MOST_RUNS:])} stages more")
    return f"{replica.count} × {size} each: " + " → ".join(shown)


def _alike(stage: Stage) -> tuple[str, int, int, Recompute]:
    return stage.gpu, stage.tensor_parallel, stage.layer_count, stage.recompute


def _stages_words(alike: tuple[str, int, int, Recompute], number: int) -> str:
    gpu, tensor_parallel, layers, recompute = alike
    words = f"{tensor_parallel} {gpu} with {counted(layers, 'layer')}"
    if recompute.layers is None:
        words += "" if recompute.granularity == "none" else f" ({recompute.granularity})"
    elif recompute.method == "block":
        words += f" ({recompute.layers} recomputed)"
    else:
        words += " (all recomputed)" if recompute.layers == 1 else f" (all recomputed, in groups of {recompute.layers})"
    return f"{number} × ({words})" if number > 1 else words


def certificate(plan: Plan, report: SearchReport) -> str:
    """Return how far from the best a plan can be, and what that leaves out; nothing without a certificate."""
    prediction = plan.prediction
    if prediction is None or report.gap is None or not report.not_covered:
        return ""
    words = f"no strategy of the declared space {least_words(plan, report.lower_bound_dollars)}; "
    if report.gap < 5e-5:
        words += "the plan is the best of it"
    else:
        words += f"the plan is within {report.gap:.2%} of that"
    return words + ". Not covered: " + "; ".join(map(in_words, report.not_covered))


def least_words(plan: Plan, dollars: float | None) -> str:
    """Return what the certificate says: is faster than 1.2 s or, where the bound is of `dollars`, costs less than $1.23
    an iteration."""
    job, prediction = plan.job, plan.predicted
    if dollars is None:
        assert prediction.lower_bound_seconds is not None, "a search has a bound"
        seconds = prediction.lower_bound_seconds
        within = "" if job.budget_dollars is None else " within the budget"
        return f"is faster than {clock(seconds, like=seconds)}{within}"
    words = f"costs less than ${dollars:.4g} an iteration"
    if job.iterations is not None:
        words += f", {format_dollars(dollars * job.iterations)} for all tokens"
    return words + ("" if job.deadline_hours is None else ", within the deadline")


def layered_settings(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the strategy of uneven FSDP in labelled lines."""
    yield "GPUs", f"{plan.gpus}: {gpu_words(plan)}, each with the whole model, layer by layer"
    waves = counted(plan.schedule.waves or 1, "wave")
    yield "batch", f"{plan.job.global_batch} rows in {waves}; in each a layer's weights are gathered once a pass"
    for place, replica in enumerate(plan.replicas):
        yield "shares" if place == 0 else "", shares_words(plan, replica)
    yield from strategy.shared_settings(plan)


def shares_words(plan: Plan, replica: Replica) -> str:
    """Return the shares of one kind of GPU: 4 × A100: 11 rows in 6 micro-batches, 12.5% of the state."""
    stage = replica.stages[0]
    rows = f"{counted(replica.samples(plan.micro_batch), 'row')} in "
    words = rows + counted(replica.micro_batches, "micro-batch")
    words += f", {(replica.state or 0) / (plan.optimizer.parts or 1):.3g} of the state"
    if stage.recompute.granularity != "none":
        count = stage.recompute.layers if stage.recompute.method == "block" else len(plan.model.layers)
        words += f", {count} layers recomputed"
    return f"{replica.count} × {stage.gpu}: {words}"
