"""Plans on a terminal: several as a table, one in full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial

from shardwright.cost.money import MOST_STRETCH, run_stretch
from shardwright.cost.trust.interval import carried, chances
from shardwright.plans.plan import Plan, Prediction, Replica, StageMemory
from shardwright.reports.text import mixed, outcome, strategy
from shardwright.reports.text.layout import bar, labelled, table, wrapped
from shardwright.reports.text.outcome import effect_words
from shardwright.search.renting import FrontPoint
from shardwright.units import (
    GIBIBYTE,
    SECONDS_PER_HOUR,
    clock,
    format_bytes,
    format_count,
    format_dollars,
    format_seconds,
)

MOST_STAGES = 16
MOST_REPLICAS = 4  # kinds of replicas whose memory is shown
FAR = 2.0  # distance of a published run (`plan.Evidence`) that says little of a plan
SPARE = ("recompute", "$/h", "fits", "peak GiB", "sharding", "tokens/s", "cp")  # go first where space is short


def plans_table(plans: Sequence[Plan], width: int) -> str:
    """Return one row a plan. Columns that would say nothing are left out."""
    rows = [_cells(place, plan) for place, plan in enumerate(plans, start=1)]
    silent = {"?", "–"}
    names = [name for name in rows[0] if not all(row[name] in silent for row in rows)]
    words = ("GPU",)
    return table(names, [[row[name] for name in names] for row in rows], words=words, spare=SPARE, width=width)


def _cells(place: int, plan: Plan) -> dict[str, str]:
    stage, prediction = plan.stages[0], plan.predicted
    hours, dollars = prediction.hours_total, prediction.dollars_total
    experts = plan.model.has_experts
    return {
        "#": str(place),
        "GPU": _gpu_words(plan),
        "GPUs": str(plan.gpus),
        "tp": strategy.tensor_parallel_words(plan),
        "cp": str(stage.context_parallel),
        "pp": strategy.depth_words(plan),
        "dp": str(plan.data_parallel),
        "ep": str(stage.expert_parallel) if experts else "–",
        "vpp": str(plan.schedule.virtual_stages),
        "mbs": str(plan.micro_batch),
        "recompute": strategy.recompute_words(plan),
        "sharding": strategy.sharding_words(plan),
        "iteration": clock(prediction.iteration_seconds, like=prediction.iteration_seconds),
        "tokens/s": format_count(prediction.tokens_per_second),
        "MFU": f"{prediction.mfu:.1%}",
        "peak GiB": f"{outcome.fullest(prediction).total_bytes / GIBIBYTE:.1f}",
        "fits": f"{prediction.fit_probability:.0%}",
        "$/h": "?" if prediction.dollars_per_hour is None else f"{prediction.dollars_per_hour:,.0f}",
        "run": "–" if hours is None else format_seconds(hours * SECONDS_PER_HOUR),
        "$ run": "–" if dollars is None else format_dollars(dollars),
    }


def _gpu_words(plan: Plan) -> str:
    if len(plan.cluster.pools) < 2:
        return "–"
    return " + ".join(plan.gpus_by_type)


def whole_run(best: Plan) -> str:
    """Return hours and dollars of the whole run with their 80 % intervals, failures counted; "" without a length."""
    prediction = best.predicted
    if prediction.hours_total is None:
        return ""
    words = run_words(best, prediction.hours_total, prediction.dollars_total)
    return words + "".join(f"; {chance:.0%} sure to keep the {limit}" for limit, chance in plan_chances(best).items())


def plan_chances(plan: Plan) -> Mapping[str, float]:
    """Return with what probability a costed plan keeps the limits of its job."""
    prediction, job = plan.predicted, plan.job
    return chances(
        prediction,
        prediction.hours_total,
        prediction.dollars_total,
        deadline_hours=job.deadline_hours,
        budget_dollars=job.budget_dollars,
    )


def run_words(plan: Plan, hours: float, dollars: float | None) -> str:
    """Return hours and dollars of a whole run, its failures counted in both, with their 80 % intervals."""
    prediction = plan.predicted
    if run_stretch(plan) > MOST_STRETCH:
        return "an endless time: a run is interrupted too often to ever end (preemptions_per_hour)"
    low, high = (format_seconds(end * SECONDS_PER_HOUR) for end in carried(prediction, hours))
    words = f"{format_seconds(hours * SECONDS_PER_HOUR)} (80% sure: {low} to {high})"
    if dollars is None:
        return f"{words}; no price known, so no cost (price_per_hour)"
    least, most = (format_dollars(end) for end in carried(prediction, dollars))
    return f"{words} for {format_dollars(dollars)} ({least} to {most}), including failures and restarts"


def plan_text(plan: Plan, title: str, width: int) -> str:
    """Return one plan in full: settings, memory per stage, where the time goes, money, how sure."""
    prediction = plan.predicted
    low, high = prediction.interval
    of = partial(clock, like=prediction.iteration_seconds)
    lines = [
        title,
        *(labelled(name, words, width) for name, words in _settings(plan)),
        "",
        "  Memory of one GPU",
        *_memory_lines(plan, prediction, width),
        "",
        wrapped(
            f"Where the {of(prediction.iteration_seconds)} of an iteration go "
            "(communication as far as computation does not hide it)",
            "  ",
            width,
        ),
        *_time_lines(prediction, width),
        "",
        labelled("interval", f"80% sure: {of(low)} to {of(high)} an iteration", width),
        *(labelled("site", words, width) for words in [effect_words(prediction.site)] if words),
        labelled("memory", f"fits with probability {prediction.fit_probability:.0%}", width),
        *(labelled("measured", outcome.measured_words(known), width) for known in [prediction.measured] if known),
        *_evidence_lines(prediction, width),
        labelled("bottleneck", outcome.bottleneck(prediction), width),
        labelled("money", outcome.money_words(prediction), width),
    ]
    return "\n".join(lines)


def _settings(plan: Plan) -> Iterator[tuple[str, str]]:
    gpus, *others = settings_of(plan)
    yield gpus
    if words := mixed.idle_words(plan):
        yield "idle", words
    yield from others


def settings_of(plan: Plan) -> Iterable[tuple[str, str]]:
    """Return the strategy of any plan in labelled lines."""
    if plan.layered:
        return mixed.layered_settings(plan)
    return strategy.settings(plan) if plan.uniform else mixed.settings(plan)


def _evidence_lines(prediction: Prediction, width: int) -> Iterator[str]:
    """Yield the published runs that the prediction is based on, or that nothing near is published."""
    if not prediction.evidence:
        return
    for place, run in enumerate(prediction.evidence):
        what = f"{run.model} on {run.gpus} {run.gpu} ({run.framework}; {run.strategy})"
        reached = f"{format_count(run.tokens_per_second)} tokens/s measured, {run.error:+.0%} predicted"
        yield labelled("based on" if place == 0 else "", f"{what}: {reached}; {run.source}", width)
    if prediction.evidence[0].distance > FAR:
        yield labelled("", "these are far from this plan: nothing like it is published, so the interval is wide", width)


def _bar_width(width: int) -> int:
    return 24 if width >= 100 else 12 if width >= 72 else 0


def _memory_lines(plan: Plan, prediction: Prediction, width: int) -> Iterator[str]:
    for place, replica in enumerate(plan.replicas[:MOST_REPLICAS]):
        if len(plan.replicas) > 1:
            yield f"    replicas {place + 1} of {len(plan.replicas)} kinds ({replica.count} ×)"
        yield from _stage_lines(replica, prediction.memory[place], width)
    if len(plan.replicas) > MOST_REPLICAS:
        yield f"    … {len(plan.replicas) - MOST_REPLICAS} kinds more"
    host = outcome.host_words(prediction)
    terms = outcome.memory_terms(outcome.fullest(prediction)) + (f"; {host}" if host else "")
    yield wrapped(f"fullest: {terms}", "    ", width)


def _stage_lines(replica: Replica, stages: Sequence[StageMemory], width: int) -> Iterator[str]:
    before = -1
    for rank in _shown_ranks([stage.total_bytes / stage.capacity_bytes for stage in stages]):
        if rank > before + 1:
            yield f"    … {rank - before - 1} more"
        before = rank
        stage = stages[rank]
        share = stage.total_bytes / stage.capacity_bytes
        sizes = f"{format_bytes(stage.total_bytes):>9} of {format_bytes(stage.capacity_bytes)}"
        over = "  too much" if share > 1.0 else ""
        layers = strategy.layers_words(replica.stages[rank])
        yield f"    stage {rank:<3} {bar(share, _bar_width(width))} {share:4.0%} {sizes}  {layers}{over}"


def _shown_ranks(shares: Sequence[float]) -> list[int]:
    """Return the pipeline ranks to show: all, or of many the first and last few and the fullest."""
    ranks = range(len(shares))
    if len(shares) <= MOST_STAGES:
        return list(ranks)
    worst = max(ranks, key=lambda rank: shares[rank])
    return sorted({*ranks[: MOST_STAGES // 2], worst, *ranks[-MOST_STAGES // 4 :]})


def _time_lines(prediction: Prediction, width: int) -> Iterator[str]:
    of = partial(clock, like=prediction.iteration_seconds)
    for name, words in outcome.TERMS.items():
        seconds = getattr(prediction.time, name)
        share = seconds / prediction.iteration_seconds
        if share >= 0.0005:
            yield f"    {words:<30} {bar(share, _bar_width(width))} {share:6.1%} {of(seconds):>12}"


def risk_text(choice: FrontPoint, width: int) -> str:
    """Return the interruptions to expect, how they are met, and what the run comes to with them."""
    of = format_seconds
    took = of(choice.hours * SECONDS_PER_HOUR)
    lines = ["Risk", labelled("expected", f"{choice.interruptions:,.1f} interruptions in {took}", width)]
    if choice.checkpoint_interval_seconds is not None and choice.young_interval_seconds is not None:
        every = (
            f"every {of(choice.checkpoint_interval_seconds)} of work, each {of(choice.checkpoint_seconds)} (the best "
            f"interval; Young's approximation says {of(choice.young_interval_seconds)})"
        )
        lines += [
            labelled("checkpoints", every, width),
            labelled("recovery", f"{of(choice.recovery_seconds)} after each, checkpoint read again", width),
            labelled("lost", f"{choice.lost_share:.1%} of the paid hours: lost work, checkpoints, restarts", width),
        ]
    money = f"{format_dollars(choice.dollars)}, ${choice.dollars_per_million_tokens:.3g} a million tokens"
    return "\n".join([*lines, labelled("expected", money, width)])


def risk_document(choice: FrontPoint) -> Mapping[str, object]:
    """Return the same as a JSON document: expected hours and dollars of the whole run, and what they are made of."""
    figures = [field.name for field in fields(choice) if field.name not in ("rentals", "plan")]
    return {name: getattr(choice, name) for name in figures}
