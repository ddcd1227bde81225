"""How one plan differs from another, term by term, in words."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.plan.plan import Plan
from shardwright.report import describe
from shardwright.report.terminal import predicted
from shardwright.units import format_bytes, format_seconds


def differences(mine: Plan, best: Plan) -> Iterator[str]:
    """Yield what the best plan sets otherwise, then where its time differs, largest difference first."""
    ours, theirs = predicted(mine), predicted(best)
    for (name, value), (_, other) in zip(describe.switches(mine), describe.switches(best), strict=True):
        if value != other:
            yield f"{name}: {value}, the best has {other}"
    gaps = {words: getattr(ours.time, name) - getattr(theirs.time, name) for name, words in describe.TERMS.items()}
    for words in sorted(gaps, key=lambda name: -abs(gaps[name])):
        if abs(gaps[words]) >= 0.005 * ours.iteration_seconds:
            more = "more" if gaps[words] > 0 else "less"
            yield f"{format_seconds(abs(gaps[words]))} {more} {words} than the best{_reason(words, mine)}"
    mine_peak, best_peak = describe.fullest(ours), describe.fullest(theirs)
    yield f"peak memory {format_bytes(mine_peak.total_bytes)}, the best {format_bytes(best_peak.total_bytes)}"


def _reason(words: str, mine: Plan) -> str:
    """Return what causes a term, where a figure of the plan says it."""
    replica = mine.replicas[0]
    stage = replica.stages[0]
    if words == "pipeline bubble":
        return (
            f" ({replica.micro_batches} micro-batches for {len(replica.stages)} pipeline ranks with "
            f"{mine.schedule.virtual_stages} virtual stages each)"
        )
    if words == "tensor-parallel communication":
        return f" ({stage.tensor_parallel} ranks; overlap {'on' if mine.overlap.tensor_parallel else 'off'})"
    if words == "recomputation":
        return f" ({describe.recompute_words(mine)})"
    if words == "data-parallel communication":
        return f" ({mine.data_parallel} replicas, {mine.optimizer.sharding})"
    return ""


def verdict(mine: Plan, best: Plan | None) -> str:
    """Return how much the best would gain over a plan."""
    if best is None:
        return "no plan of the space fits these machines"
    gain = predicted(mine).iteration_seconds / predicted(best).iteration_seconds - 1.0
    if gain <= 0.001:
        return "no plan of the space is faster by more than 0.1 %"
    return f"the best plan is {gain:.1%} faster: {predicted(best).iteration_seconds:.3f} s an iteration"


def shortage(mine: Plan) -> Iterator[str]:
    """Yield a line for each stage that needs more memory than its GPU has."""
    for rank, stage in enumerate(predicted(mine).memory[0]):
        if stage.total_bytes > stage.capacity_bytes:
            need, have = format_bytes(stage.total_bytes), format_bytes(stage.capacity_bytes)
            yield f"stage {rank} needs {need} of {have} ({describe.memory_terms(stage)})"
