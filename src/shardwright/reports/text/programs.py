"""How the fastest SPMD program stands against the best plan."""

from __future__ import annotations

from shardwright.plans.ranking import GpuShare, NoProgram, Ranking, SpmdProgram
from shardwright.reports.text.layout import labelled, wrapped
from shardwright.units import clock, format_bytes

UNASKED = "SPMD programs: not searched; --programs searches them on small clusters (some seconds)"
EQUAL = 0.005  # relative; what differs by less takes as long


def program_words(ranking: Ranking) -> str:
    """Return by how much a program beats the best plan, or why there is none; nothing where none was asked for."""
    program = ranking.program
    if program is None:
        return ""
    if isinstance(program, NoProgram):
        return f"no SPMD program: {program.reason}"
    best = ranking.best.iteration_seconds
    ours, less = program.iteration_seconds, 1.0 - program.iteration_seconds / best
    time = clock(ours, like=best)
    if abs(less) < EQUAL:
        return f"{time} an iteration, as long as the plan"
    if less < 0:
        return f"{time} an iteration, {-less:.0%} more than the plan: pipelines and uneven shares win here"
    return f"{time} an iteration, {less:.0%} less than the plan; {how_to_run(ranking, program)}"


def program_text(ranking: Ranking, width: int) -> str:
    """Return what the program does on each type of GPU."""
    program = ranking.program
    if program is None:
        return wrapped(UNASKED, "", width)
    lines = ["SPMD program", labelled("  against", program_words(ranking), width, column=12)]
    if isinstance(program, SpmdProgram):
        gap = 1.0 - program.bound_seconds / program.iteration_seconds
        rows = [
            *((f"  {share.count} × {share.gpu}", _share_words(share)) for share in program.shares),
            ("  sends", ", ".join(f"{count} × {name.replace('_', ' ')}" for name, count in program.sent)),
            ("  memory", f"{format_bytes(program.memory_bytes)} of state and activations on the fullest GPU"),
            ("  how good", f"at most {gap:.1%} above the best program at its shares"),
            ("  run", how_to_run(ranking, program)),
        ]
        column = max(len(name) for name, _ in rows) + 2
        lines += [labelled(name, words, width, column=column) for name, words in rows]
    return "\n".join(lines)


def how_to_run(ranking: Ranking, program: SpmdProgram) -> str:
    """Return the commands that make and run a program for the user's own module."""
    rows = ranking.best.job.global_batch // program.steps
    more = f" --accumulate {program.steps}" if program.steps > 1 else ""
    return f"`shardwright spmd plan` with batches of {rows} rows, then `spmd train{more}` (docs/how-to-spmd.md)"


def _share_words(share: GpuShare) -> str:
    rows, features, state = (f"{part:.1%}" for part in (share.rows, share.features, share.state))
    return f"{rows} of the rows each, {features} of what is cut otherwise, {state} of the state"
