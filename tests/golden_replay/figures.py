"""Rankings, evaluations and rentals as lines of text: a name and its figures, numbers with ten digits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from shardwright.plans.plan import Plan, Prediction, Replica, Stage, StageMemory, TimeBreakdown
from shardwright.plans.ranking import Evaluation, NoPlan, Ranking, SearchReport
from shardwright.reports.text.outcome import bottleneck
from shardwright.reports.words import in_words
from shardwright.search.market.result import Shopping
from shardwright.search.renting import FrontPoint

Figure = tuple[str, str]
SMALLEST = 1e-12  # what is nearer to nothing is rounding


def number(value: float | None) -> str:
    """Return a number with ten significant digits."""
    if value is None:
        return "none"
    return f"{0.0 if abs(value) < SMALLEST else value:.10g}"


def ranking_figures(ranking: Ranking) -> Iterator[Figure]:
    """Yield what a search found: counts, every plan, the baselines, and why there is no plan."""
    yield from _search_figures(ranking.search, mixed=any(not plan.uniform for plan in ranking.plans))
    if ranking.infeasible:
        yield from _infeasible_figures(ranking.infeasible)
    for place, plan in enumerate(ranking.plans):
        yield "plan", str(place + 1)
        yield from plan_figures(plan) if place == 0 else _brief(plan)
    for baseline in ranking.baselines:
        found = baseline.plan.prediction if baseline.plan else None
        yield "baseline", f"{baseline.rule}: {number(found.iteration_seconds) if found else in_words(baseline.failure)}"


def _search_figures(report: SearchReport, *, mixed: bool) -> Iterator[Figure]:
    yield "candidates", str(report.candidates)
    if not mixed:  # how many of a mixed search are costed says nothing of what it finds
        yield "costed", str(report.costed)
        for reason, count in sorted((in_words(rejection), count) for rejection, count in report.rejected):
            yield "rejected", f"{reason}: {count}"
    yield "gap", number(report.gap)
    if report.lower_bound_dollars is not None:
        yield "least dollars of an iteration", number(report.lower_bound_dollars)
    for kind in report.not_covered:
        yield "not covered", in_words(kind)


def _infeasible_figures(infeasible: NoPlan) -> Iterator[Figure]:
    yield "infeasible", in_words(infeasible.reason)
    for remedy in infeasible.remedies:
        yield "remedy", in_words(remedy)


def evaluation_figures(evaluation: Evaluation) -> Iterator[Figure]:
    """Yield a plan's own figures, what would make it fit, and the best plan in brief."""
    yield from plan_figures(evaluation.plan)
    for remedy in evaluation.remedies:
        yield "remedy", in_words(remedy)
    for plan in evaluation.best.plans:
        yield "best", ""
        yield from _brief(plan)


def shopping_figures(shopping: Shopping) -> Iterator[Figure]:
    """Yield the front, the picks, and what was looked at."""
    report = shopping.report
    yield "numbers of machines", str(report.counts)
    yield "layouts", str(report.layouts)
    yield "mixes", str(report.mixes)
    for kind in report.not_covered:
        yield "not covered", in_words(kind)
    picks = shopping.picks
    yield "picks", f"knee {picks.knee} cheapest {picks.cheapest_in_time} fastest {picks.fastest_in_budget}"
    if shopping.infeasible:
        yield from _infeasible_figures(shopping.infeasible)
    for place, choice in enumerate(shopping.front):
        yield "choice", str(place)
        yield from _choice_figures(choice)


def _choice_figures(choice: FrontPoint) -> Iterator[Figure]:
    yield "rented", " + ".join(f"{rental.machines} × {rental.offer.name}" for rental in choice.rentals)
    yield "run", f"hours {number(choice.hours)} dollars {number(choice.dollars)}"
    yield "risk", f"preemptions {number(choice.preemptions)} interruptions {number(choice.interruptions)}"
    yield "checkpoint interval", number(choice.checkpoint_interval_seconds)
    yield from _brief(choice.plan)


def _brief(plan: Plan) -> Iterator[Figure]:
    """Yield what is chosen and how long it takes."""
    yield "iteration", f"{number(plan.iteration_seconds)} s"
    yield from _strategy(plan)


def plan_figures(plan: Plan) -> Iterator[Figure]:
    """Yield all that is predicted of a plan, and what is chosen."""
    yield from _prediction_figures(plan.predicted)
    yield from _strategy(plan)


def _prediction_figures(found: Prediction) -> Iterator[Figure]:
    low, high = found.interval
    yield "iteration", f"{number(found.iteration_seconds)} s"
    yield "interval", f"{number(low)} to {number(high)} s"
    yield "bound", f"{number(found.lower_bound_seconds)} s"
    yield "tokens per second", number(found.tokens_per_second)
    yield "mfu", number(found.mfu)
    yield "fit probability", number(found.fit_probability)
    yield "dollars an hour", number(found.dollars_per_hour)
    yield "whole run", f"dollars {number(found.dollars_total)} hours {number(found.hours_total)}"
    yield "binding", bottleneck(found)
    for run in found.evidence:
        yield "evidence", f"{run.model} on {run.gpus} {run.gpu}: {number(run.predicted_tokens_per_second)} tokens/s"
    yield from _time_figures(found.time)
    for kind, stages in enumerate(found.memory):
        for place, stage in enumerate(stages):
            yield f"bytes of stage {kind}.{place}", _memory_words(stage)


def _time_figures(time: TimeBreakdown) -> Iterator[Figure]:
    for name in TimeBreakdown.__dataclass_fields__:
        yield name.removesuffix("_seconds").replace("_", " "), f"{number(round(getattr(time, name), 12))} s"


def _memory_words(stage: StageMemory) -> str:
    names = [name for name in StageMemory.__dataclass_fields__ if stage.in_host_bytes or "host" not in name]
    return " ".join(f"{name.removesuffix('_bytes')} {getattr(stage, name):.0f}" for name in names)


def _strategy(plan: Plan) -> Iterator[Figure]:
    on = [name for name in type(plan.overlap).__dataclass_fields__ if getattr(plan.overlap, name)]
    switches = [
        f"{plan.schedule.kind} {plan.schedule.waves or plan.schedule.virtual_stages}",
        f"sharding {plan.optimizer.sharding}",
        f"offload {number(plan.optimizer.offload)}",
        f"overlap {' '.join(on) or 'none'}",
        f"sequence parallel {plan.sequence_parallel}",
        f"flash {plan.flash_attention}",
        plan.rank_order,
    ]
    yield "micro-batch", str(plan.micro_batch)
    yield "switches", ", ".join(switches)
    for replica in plan.replicas:
        yield "replicas", _replica_words(replica) + _share_words(plan, replica)


def _replica_words(replica: Replica) -> str:
    stages = [(len(list(same)), words) for words, same in groupby(map(_stage_words, replica.stages))]
    pipeline = " → ".join(words if count == 1 else f"{count} × ({words})" for count, words in stages)
    return f"{replica.count} × {replica.micro_batches} micro-batches: {pipeline}"


def _share_words(plan: Plan, replica: Replica) -> str:
    if not plan.layered:
        return ""
    return f", rows {replica.rows} of {plan.job.global_batch}, state {replica.state} of {plan.optimizer.parts}"


def _stage_words(stage: Stage) -> str:
    degrees = [("tp", stage.tensor_parallel), ("cp", stage.context_parallel)]
    degrees += [("ep", stage.expert_parallel), ("etp", stage.expert_tensor_parallel)]
    words = [stage.gpu, *(f"{name}{degree}" for name, degree in degrees if degree > 1)]
    words.append("layers " + _runs([end - start for start, end in stage.layers]))
    if stage.recompute.granularity != "none":
        parts = (stage.recompute.granularity, stage.recompute.method, stage.recompute.layers)
        words.append("recompute " + " ".join(str(part) for part in parts if part is not None))
    return " ".join(words)


def _runs(counts: Sequence[int]) -> str:
    """Return layers of virtual stages, equal ones together: `2×4+3`."""
    runs = [(count, len(list(same))) for count, same in groupby(counts)]
    return "+".join(str(count) if times == 1 else f"{times}×{count}" for count, times in runs)
