"""How one plan differs from another, term by term, and what speaks against a faster one, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from shardwright.cost.trust.interval import ratio_interval
from shardwright.cost.trust.rarity import rare_beside
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Baseline, PassedOver, Usual, WithOptions
from shardwright.records import record
from shardwright.reports.text import outcome, strategy
from shardwright.reports.text.layout import labelled
from shardwright.reports.text.mixed import gpu_words
from shardwright.reports.text.strategy import SETTINGS
from shardwright.reports.words import in_words
from shardwright.units import clock, counted, format_bytes, format_seconds

SMALLEST_SHARE = 0.002  # of an iteration; a smaller difference is not worth a line
# The settings that a term of the time depends on, the most telling first.
CAUSES = {
    "forward_seconds": ("gpu_types", "gpus", "tensor_parallel", "layers", "micro_batch"),
    "backward_seconds": ("gpu_types", "gpus", "tensor_parallel", "layers", "micro_batch"),
    "recompute_seconds": ("recompute",),
    "tensor_parallel_seconds": (
        "tensor_parallel",
        "sequence_parallel",
        "overlap_tensor_parallel",
        "micro_batch",
        "context_parallel",
    ),
    "context_parallel_seconds": ("context_parallel", "tensor_parallel", "micro_batch"),
    "expert_parallel_seconds": ("expert_parallel", "expert_tensor_parallel", "tensor_parallel", "rank_order"),
    "pipeline_seconds": ("pipeline_parallel", "virtual_stages", "micro_batch", "overlap_pipeline"),
    "data_parallel_seconds": (
        "sharding",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "data_parallel",
        "context_parallel",
        "micro_batches",
        "rank_order",
    ),
    "optimizer_seconds": ("sharding", "offload", "data_parallel", "context_parallel"),
    "framework_seconds": ("micro_batch", "virtual_stages", "data_parallel"),
}


@record
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
    ours, theirs = mine.predicted.time, best.predicted.time
    return tuple(
        Gap(name=name, words=words, mine_seconds=getattr(ours, name), best_seconds=getattr(theirs, name))
        for name, words in outcome.TERMS.items()
    )


def changes(mine: Plan, best: Plan) -> dict[str, tuple[str, str]]:
    """Return the settings that differ, by their names in `strategy.SETTINGS`: of `mine` and of `best`."""
    others = strategy.switches(best)
    return {name: (value, others[name]) for name, value in strategy.switches(mine).items() if value != others[name]}


def telling_gaps(mine: Plan, best: Plan) -> list[Gap]:
    """Return the terms whose difference is worth a line, the largest first."""
    least = SMALLEST_SHARE * best.iteration_seconds
    return sorted((gap for gap in gaps(mine, best) if abs(gap.seconds) >= least), key=lambda gap: -abs(gap.seconds))


def gap_words(gap: Gap, mine: Plan, best: Plan) -> str:
    """Return what `mine` loses or gains in one term, and what causes it."""
    more = "more" if gap.seconds > 0 else "less"
    cause = cause_words(gap, mine, best)
    return f"{format_seconds(abs(gap.seconds))} {more} {gap.words}" + (f": {cause}" if cause else "")


def reasons(mine: Plan, best: Plan) -> list[str]:
    """Return where `mine` loses or gains seconds and what causes it, the largest difference first."""
    return [gap_words(gap, mine, best) for gap in telling_gaps(mine, best)]


def cause_words(gap: Gap, mine: Plan, best: Plan) -> str:
    """Return what causes the difference of a term, or nothing where no setting that matters for it differs."""
    if gap.name == "bubble_seconds":
        return f"{_bubble_words(mine)}; the best: {_bubble_words(best)}"
    pairs = ((cause, changes(mine, best).get(cause)) for cause in CAUSES[gap.name])
    causes = [
        f"{SETTINGS[cause]} {pair[0]}, the best {pair[1]}"
        for cause, pair in pairs
        if pair is not None and not (cause.startswith("overlap") and (pair[0] == "off") != (gap.seconds > 0.0))
    ]
    return "; ".join(causes[:3])


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
    set_otherwise = [
        f"{SETTINGS[name]} {value} (best {wanted})" for name, (value, wanted) in changes(other, best).items()
    ]
    words = ", ".join(set_otherwise) or "the same settings"
    largest = max(gaps(other, best), key=lambda gap: gap.seconds)
    if largest.seconds > 0:
        words += f"; costs {format_seconds(largest.seconds)} more {largest.words}"
    return words


def value(plan: Plan) -> float:
    """Return what the job minimises, for one iteration: seconds, or dollars where prices are known."""
    dollars = plan.iteration_dollars if plan.job.objective == "cost" else None
    return plan.iteration_seconds if dollars is None else dollars


def unit(plan: Plan) -> str:
    """Return what `value` counts: time or money."""
    return "money" if plan.job.objective == "cost" and plan.predicted.dollars_per_hour is not None else "time"


def saving(mine: Plan, best: Plan) -> str:
    """Return in words how much less than `mine` the best takes, and how sure that is: 40% less time (1.67× as fast, 80%
    sure: 1.43 to 1.95)."""
    less = 1.0 - value(best) / value(mine)
    if less < 0.01:
        return f"{less:.2%} less {unit(best)}"
    if unit(best) != "time":
        return f"{less:.0%} less {unit(best)}"
    low, high = ratio_interval(mine, best)
    doubt = "" if low > 1.0 else "; which of the two is faster is not sure"
    return f"{less:.0%} less time ({value(mine) / value(best):.2f}× as fast, 80% sure: {low:.2f} to {high:.2f}{doubt})"


@record
class Verdict:
    """How a plan stands against the best: a kind, the same in `words`, how far a plan of the space may be better at
    most (`room`, a part of time or money) where that is known, and the 80 % interval of its time over that of a
    better one (`ratio`)."""

    kind: Literal["illegal", "too_large", "no_plan_fits", "best", "no_better_found", "better_found"]
    words: str
    room: float | None = None
    ratio: tuple[float, float] | None = None


def verdict(mine: Plan, best: Plan | None, *, legal: bool = True, gap: float | None = None) -> Verdict:
    """Return how a plan stands against the best. `gap` is how far above the bound of its search the best may be."""
    if not legal:
        doubt = "this plan cannot run as it is, its figures only say what it would do if it could; "
        return Verdict(kind="illegal", words=doubt + _best_words(best))
    if any(shortages(mine)):
        doubt = "this plan does not fit in memory, its time is what it would be if it did; "
        return Verdict(kind="too_large", words=doubt + _best_words(best))
    if best is None:
        return Verdict(kind="no_plan_fits", words=_best_words(best))
    if value(best) >= 0.999 * value(mine):
        room = 1.0 - value(best) / value(mine) / (1.0 + (gap or 0.0))
        if room <= 0.001:
            return Verdict(kind="best", words="no plan of the space is better by more than 0.1%", room=room)
        words = f"no better plan was found; it is proved that none of the space is better by more than {room:.1%}"
        return Verdict(kind="no_better_found", words=words, room=room)
    ratio = ratio_interval(mine, best)
    return Verdict(kind="better_found", words=f"{_best_words(best)}, {saving(mine, best)}", ratio=ratio)


def _best_words(best: Plan | None) -> str:
    if best is None:
        return "no plan at all fits these machines"
    seconds = best.iteration_seconds
    return f"the best plan takes {clock(seconds, like=seconds)} an iteration"


@record
class StageShortage:
    """A stage that needs more memory than its GPU has: the places of its kind of replica and of its pipeline rank,
    and the same in `words`."""

    replica: int
    stage: int
    needed_bytes: float
    memory_bytes: float
    words: str


def shortages(mine: Plan) -> list[StageShortage]:
    """Return each stage that needs more memory than its GPU has, the worst first and with its terms; then each that
    needs more of its machine's memory than its GPU's share."""
    stages = [
        (replica, rank, stage) for replica, row in enumerate(mine.predicted.memory) for rank, stage in enumerate(row)
    ]
    short = [entry for entry in stages if entry[2].total_bytes > entry[2].capacity_bytes]
    short.sort(key=lambda entry: entry[2].capacity_bytes - entry[2].total_bytes)
    several = len(mine.replicas) > 1

    def name(replica: int, rank: int) -> str:
        return f"stage {rank}{f' of replicas {replica + 1}' if several else ''}"

    on_gpu = [
        StageShortage(
            replica=replica,
            stage=rank,
            needed_bytes=stage.total_bytes,
            memory_bytes=stage.capacity_bytes,
            words=f"{name(replica, rank)} needs {format_bytes(stage.total_bytes)} of "
            f"{format_bytes(stage.capacity_bytes)}" + (f" ({outcome.memory_terms(stage)})" if place == 0 else ""),
        )
        for place, (replica, rank, stage) in enumerate(short)
    ]
    in_host = [
        StageShortage(
            replica=replica,
            stage=rank,
            needed_bytes=stage.in_host_bytes,
            memory_bytes=stage.host_capacity_bytes,
            words=f"a GPU of {name(replica, rank)} needs {format_bytes(stage.in_host_bytes)} of host memory; its share "
            f"of the machine's is {format_bytes(stage.host_capacity_bytes)}",
        )
        for replica, rank, stage in stages
        if not stage.fits_in_host
    ]
    return on_gpu + in_host


SMALLEST_SAVING = 0.0005  # a part of the time that is worth a word; chosen


def passed_over_words(better: PassedOver | None) -> str:
    """Return what a better plan has and would save: ZeRO-2 (6 of 3,228 published runs) would take 0.40% less time,
    but hardly any run has it; --set sharding=zero2 asks for it. Nothing where there is none worth a word."""
    if better is None or better.saving < SMALLEST_SAVING:
        return ""
    names = " and ".join(map(in_words, better.switches))
    asked = " ".join(f"--set {pin}" for pin in better.pins)
    them = "it" if len(better.switches) == 1 else "them"
    words = f"{names} would take {better.saving:.2%} less {unit(better.plan)}, but hardly any run has {them}"
    return f"{words}; {asked} asks for it" if asked else words


def usual_words(usual: Usual | None) -> str:
    """Return what the best plan without rare switches takes: the best plan without what is hardly tested takes 10.4%
    more time, 37.3 s; --set overlap_tp=no asks for it. Nothing where none was looked for, or there is none."""
    if usual is None:
        return ""
    seconds = usual.plan.iteration_seconds
    figure = f", {clock(seconds, like=seconds)}" if unit(usual.plan) == "time" else ""
    asked = " ".join(f"--set {pin}" for pin in usual.pins)
    words = f"the best plan without what is hardly tested takes {usual.loss:.1%} more {unit(usual.plan)}{figure}"
    return f"{words}; {asked} asks for it"


def with_options_words(better: WithOptions | None) -> str:
    """Return what options of the trainer would save: --set cuda_graph=attention: 12% less; nothing where none pays."""
    if better is None:
        return ""
    return f"{' '.join(f'--set {pin}' for pin in better.pins)}: {better.saving:.0%} less"


def rare_words(plan: Plan, best: Plan) -> str:
    """Return what a plan has, and the best has not, that hardly any published run has; nothing where it has none."""
    return " and ".join(map(in_words, rare_beside(plan, best)))


ALIKE = 0.0005  # part of the time of a plan that is not worth a word


def nearest_words(plan: Plan, other: Plan) -> str:
    """Return what `other`, which a target can run in place of `plan`, is and costs, both with predictions."""
    seconds = other.iteration_seconds
    words = f"the nearest plan that it can run takes {clock(seconds, like=seconds)} an iteration"
    if plan.prediction is not None:
        more = seconds / plan.prediction.iteration_seconds - 1.0
        than = "as long" if abs(more) < ALIKE else f"{abs(more):.1%} {'more' if more > 0 else 'less'}"
        words += f", {than} (priced for {other.job.framework})"
    return f"{words}: {gpu_words(other)}, {strategy.degrees_words(other)}"


def kinds_words(kinds: Sequence[Baseline], best: Plan) -> str:
    """Return by how much the best plan beats the best of other kinds: 12% less time than …, 38% less than …; nothing
    where uneven FSDP is not the best."""
    if not best.layered:
        return ""
    others = [entry for entry in kinds if entry.plan is not None and value(entry.plan) > value(best)]
    return ", ".join(f"{saving(entry.plan, best)} than {entry.rule}" for entry in others if entry.plan is not None)


def kinds_text(kinds: Sequence[Baseline], best: Plan, width: int) -> str:
    """Return the best plan of each kind over several GPU types, against the best of all."""
    if not kinds:
        return ""
    lines = ["Kinds of plans over several GPU types"]
    for entry in kinds:
        if entry.plan is None:
            lines.append(labelled("  –", f"{entry.rule}: none fits", width, column=20))
            continue
        seconds = entry.plan.iteration_seconds
        time = clock(seconds, like=best.iteration_seconds)
        figures = f"{time:>11} {value(entry.plan) / value(best) - 1.0:+7.1%}"
        lines.append(labelled(figures, f"{entry.rule}: {strategy.degrees_words(entry.plan)}", width, column=20))
    return "\n".join(lines)
