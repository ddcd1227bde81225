"""`shardwright recover`: what a recovery would move, asked of a running job's keepers and changing nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from shardwright.cli import options
from shardwright.cli.output import write, write_json
from shardwright.commands import option
from shardwright.errors import bad

if TYPE_CHECKING:
    from shardwright.runtime.recovery.change.generation_change import DryRun


def recover(
    join: Annotated[str, option(metavar="HOST:PORT", help="The keeper of any machine of the run.")],
    lose: Annotated[str, option(metavar="NAME,…", help="The machines that are lost.")] = "",
    dry_run: Annotated[bool, option("--dry-run", help="Only show it; a run recovers by itself.")] = False,
    secret_file: Annotated[
        Path | None, option(metavar="FILE", help="The run's secret; else $SHARDWRIGHT_SECRET.")
    ] = None,
    json: options.AsJson = False,
) -> int:
    """Show what would move, and from where, if an elastic run lost machines now. It touches nothing.

    \b
      shardwright recover --dry-run --join 10.0.0.1:29400 --lose machine-2
      shardwright recover --dry-run --join 10.0.0.1:29400 --lose machine-1,machine-2
    """
    from shardwright.cli.elastic import address_of, secret_of
    from shardwright.runtime.recovery.change.generation_change import recovery_after_loss

    if not dry_run:
        raise bad("--dry-run", "is missing", "a run recovers by itself; this command shows what it would do")
    lost = tuple(name for name in lose.split(",") if name)
    recovery = recovery_after_loss(address_of("--join", join), lost, secret_of(secret_file))
    if json:
        write_json(_document(recovery))
    else:
        write(_text(recovery))
    return 0


def _document(result: DryRun) -> dict[str, Any]:
    from shardwright.reports.documents.ranking import VERSION

    return {
        "version": VERSION,
        "generation": result.generation,
        "step": result.step,
        "machines": list(result.machines),
        "ranks": result.ranks,
        "bytes": {name.replace("'", "").replace(" ", "_"): size for name, size in result.moved_bytes.items()},
        "seconds": result.seconds,
        "bound_seconds": result.bound_seconds,
        "decision": result.decision,
    }


def _text(result: DryRun) -> str:
    from shardwright.units import format_bytes, format_seconds

    lines = [
        f"generation {result.generation}, {len(result.machines)} machines left: {', '.join(result.machines)}",
        result.decision,
        f"{result.ranks} ranks go on at step {result.step}",
        *(f"{format_bytes(size):>12} from {name}" for name, size in result.moved_bytes.items()),
        f"moved in {format_seconds(result.seconds)}; no plan takes less than {format_seconds(result.bound_seconds)}",
    ]
    return "\n".join(lines)
