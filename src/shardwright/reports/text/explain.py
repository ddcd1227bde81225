"""How one plan differs from another, term by term, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.plans.plan import Plan
from shardwright.reports.text import outcome, strategy
from shardwright.reports.text.plans import predicted
from shardwright.units import clock, counted, format_bytes, format_seconds

SMALLEST_SHARE = 0.002  # of an iteration; a smaller difference is not worth a line
# The settings that a term of the time depends on, the most telling first.
CAUSES = {
    "forward_seconds": ("GPU type", "GPUs", "tensor parallel", "layers per pipeline rank", "micro-batch"),
    "backward_seconds": ("GPU type", "GPUs", "tensor parallel", "layers per pipeline rank", "micro-batch"),
    "recompute_seconds": ("recomputation",),
    "tensor_parallel_seconds": (
        "tensor parallel",
        "sequence parallel",
        "overlap of tensor-parallel communication",
        "micro-batch",
        "context parallel",
    ),
    "context_parallel_seconds": ("context parallel", "tensor parallel", "micro-batch"),
    "expert_parallel_seconds": ("expert parallel", "expert tensor parallel", "tensor parallel", "rank order"),
    "pipeline_seconds": ("pipeline parallel", "virtual stages", "micro-batch", "overlap of pipeline transfers"),
    "data_parallel_seconds": (
        "sharding",
        "overlap of gradient reduction",
        "overlap of weight gathering",
        "data parallel",
        "context parallel",
        "micro-batches a step",
        "rank order",
    ),
    "optimizer_seconds": ("sharding", "optimizer offload", "data parallel", "context parallel"),
    "framework_seconds": ("micro-batch", "virtual stages", "data parallel"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One term of the time of two plans."""

    name: str
    words: str
    mine_seconds: float
    best_seconds: float

    @property
    def seconds(self) -> float:
        return self.mine_seconds - self.best_seconds


def gaps(mine: Plan, best: Plan) -> tuple[Gap, ...]:
    """Return all terms; the differences add up to that of the iterations."""
    ours, theirs = predicted(mine).time, predicted(best).time
    return tuple(
        Gap(name=name, words=words, mine_seconds=getattr(ours, name), best_seconds=getattr(theirs, name))
        for name, words in outcome.TERMS.items()
    )


def changes(mine: Plan, best: Plan) -> dict[str, tuple[str, str]]:
    """Return the settings that differ, by name: of `mine` and of `best`."""
    pairs = zip(strategy.switches(mine), strategy.switches(best), strict=True)
    return {name: (value, other) for (name, value), (_, other) in pairs if value != other}


def reasons(mine: Plan, best: Plan) -> Iterator[str]:
    """Yield where `mine` loses or gains seconds and what causes it, largest difference first."""
    for gap in sorted(gaps(mine, best), key=lambda gap: -abs(gap.seconds)):
        if abs(gap.seconds) >= SMALLEST_SHARE * predicted(best).iteration_seconds:
            more = "more" if gap.seconds > 0 else "less"
            cause = cause_words(gap, mine, best)
            yield f"{format_seconds(abs(gap.seconds))} {more} {gap.words}" + (f": {cause}" if cause else "")


def cause_words(gap: Gap, mine: Plan, best: Plan) -> str:
    """Return what causes the difference of a term, or nothing where no setting that matters for it differs."""
    if gap.name == "bubble_seconds":
        return f"{_bubble_words(mine)}; the best: {_bubble_words(best)}"
    pairs = ((cause, changes(mine, best).get(cause)) for cause in CAUSES[gap.name])
    found = [
        f"{cause} {pair[0]}, the best {pair[1]}"
        for cause, pair in pairs
        if pair is not None and not (cause.startswith("overlap") and (pair[0] == "off") != (gap.seconds > 0.0))
    ]
    return "; ".join(found[:3])


def _bubble_words(plan: Plan) -> str:
    replica = plan.replicas[0]
    ranks = len(replica.stages)
    number = counted(replica.micro_batches, "micro-batch")
    words = f"micro-batch {plan.micro_batch} makes {number} for {counted(ranks, 'pipeline rank')}"
    if plan.schedule.virtual_stages > 1:
        words += f" of {plan.schedule.virtual_stages} virtual stages"
    return words


def contrast(other: Plan, best: Plan) -> str:
    """Return in one line how a plan is set otherwise than the best, and what that costs it most."""
    set_otherwise = [f"{name} {value} (best {wanted})" for name, (value, wanted) in changes(other, best).items()]
    words = ", ".join(set_otherwise) or "the same settings"
    largest = max(gaps(other, best), key=lambda gap: gap.seconds)
    if largest.seconds > 0:
        words += f"; costs {format_seconds(largest.seconds)} more {largest.words}"
    return words


def value(plan: Plan) -> float:
    """Return what the job minimises, for one iteration: seconds, or dollars where prices are known."""
    dollars = plan.iteration_dollars if plan.job.objective == "cost" else None
    return predicted(plan).iteration_seconds if dollars is None else dollars


def unit(plan: Plan) -> str:
    """Return what `value` counts: time or money."""
    return "money" if plan.job.objective == "cost" and predicted(plan).dollars_per_hour is not None else "time"


def saving(mine: Plan, best: Plan) -> str:
    """Return in words how much less than `mine` the best takes: 20% less time (1.25× as fast)."""
    less = 1.0 - value(best) / value(mine)
    if less < 0.01:
        return f"{less:.2%} less {unit(best)}"
    ratio = f" ({value(mine) / value(best):.2f}× as fast)" if unit(best) == "time" else ""
    return f"{less:.0%} less {unit(best)}{ratio}"


def differences(mine: Plan, best: Plan) -> Iterator[str]:
    """Yield what the best plan sets otherwise, then where its time differs and why, then the memory."""
    for name, (value, other) in changes(mine, best).items():
        yield f"{name}: {value}, the best has {other}"
    yield from reasons(mine, best)
    mine_peak, best_peak = outcome.fullest(predicted(mine)), outcome.fullest(predicted(best))
    yield f"peak memory {format_bytes(mine_peak.total_bytes)}, the best {format_bytes(best_peak.total_bytes)}"


def verdict(mine: Plan, best: Plan | None, *, legal: bool = True, gap: float | None = None) -> str:
    """Return how a plan stands against the best. `gap` is how far above the bound of its search the best may be."""
    doubt = ""
    if not legal:
        doubt = "this plan cannot run as it is, its figures only say what it would do if it could; "
    elif any(shortage(mine)):
        doubt = "this plan does not fit in memory, its time is what it would be if it did; "
    if best is None:
        return f"{doubt}no plan at all fits these machines"
    seconds = predicted(best).iteration_seconds
    found = f"the best plan takes {clock(seconds, like=seconds)} an iteration"
    if doubt:
        return doubt + found
    if value(best) >= 0.999 * value(mine):
        room = 1.0 - value(best) / value(mine) / (1.0 + (gap or 0.0))
        if room <= 0.001:
            return "no plan of the space is better by more than 0.1%"
        return f"no better plan was found; it is proved that none of the space is better by more than {room:.1%}"
    near = ""
    if predicted(mine).iteration_seconds <= predicted(best).interval[1] and mine.job.objective == "time":
        near = "; yours lies within the interval of the best"
    return f"{found}, {saving(mine, best)}{near}"


def shortage(mine: Plan) -> Iterator[str]:
    """Yield a line for each stage that needs more memory than its GPU has, the worst first and with its terms."""
    several = len(mine.replicas) > 1
    short = [
        (f"stage {rank}" + (f" of replicas {place + 1}" if several else ""), stage)
        for place, row in enumerate(predicted(mine).memory)
        for rank, stage in enumerate(row)
        if stage.total_bytes > stage.capacity_bytes
    ]
    short.sort(key=lambda found: found[1].capacity_bytes - found[1].total_bytes)
    for place, (name, stage) in enumerate(short):
        need, have = format_bytes(stage.total_bytes), format_bytes(stage.capacity_bytes)
        yield f"{name} needs {need} of {have}" + (f" ({outcome.memory_terms(stage)})" if place == 0 else "")
