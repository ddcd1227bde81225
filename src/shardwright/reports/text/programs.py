"""How the fastest SPMD program stands against the best plan."""

from __future__ import annotations

from shardwright.plans.ranking import GpuShare, NoProgram, Ranking, SpmdProgram
from shardwright.reports.text.layout import labelled, wrapped
from shardwright.reports.text.plans import predicted
from shardwright.units import clock, format_bytes

UNASKED = "SPMD programs: not searched; --programs searches them on small clusters (some seconds)"
EQUAL = 0.005  # relative; what differs by less takes as long


def program_words(ranking: Ranking) -> str:
    """Return by how much a program beats the best plan, or why there is none; nothing where none was asked for."""
    found = ranking.program
    if found is None:
        return ""
    if isinstance(found, NoProgram):
        return f"no SPMD program: {found.reason}"
    best = predicted(ranking.best).iteration_seconds
    ours, less = found.iteration_seconds, 1.0 - found.iteration_seconds / best
    time = clock(ours, like=best)
    if abs(less) < EQUAL:
        return f"{time} an iteration, as long as the plan"
    if less < 0:
        return f"{time} an iteration, {-less:.0%} more than the plan: pipelines and uneven shares win here"
    return f"{time} an iteration, {less:.0%} less than the plan; {how_to_run(ranking, found)}"


def program_text(ranking: Ranking, width: int) -> str:
    """Return what the program does on each type of GPU."""
    found = ranking.program
    if found is None:
        return wrapped(UNASKED, "", width)
    lines = ["SPMD program", labelled("  against", program_words(ranking), width, column=12)]
    if isinstance(found, SpmdProgram):
        gap = 1.0 - found.bound_seconds / found.iteration_seconds
        rows = [(f"  {one.count} × {one.gpu}", _share_words(one)) for one in found.shares]
        rows.append(("  sends", ", ".join(f"{count} × {name.replace('_', ' ')}" for name, count in found.sent)))
        rows.append(("  memory", f"{format_bytes(found.memory_bytes)} of state and activations on the fullest GPU"))
        rows.append(("  how good", f"at most {gap:.1%} above the best program at its shares"))
        rows.append(("  run", how_to_run(ranking, found)))
        column = max(len(name) for name, _ in rows) + 2
        lines += [labelled(name, words, width, column=column) for name, words in rows]
    return "\n".join(lines)


def how_to_run(ranking: Ranking, found: SpmdProgram) -> str:
    """Return the commands that make and run a program for the user's own module."""
    rows = ranking.best.job.global_batch // found.steps
    more = f" --accumulate {found.steps}" if found.steps > 1 else ""
    return f"`shardwright spmd plan` with batches of {rows} rows, then `spmd train{more}` (docs/how-to-spmd.md)"


def _share_words(one: GpuShare) -> str:
    return f"{one.rows:.1%} of the rows each, {one.features:.1%} of what is cut otherwise, {one.state:.1%} of the state"
