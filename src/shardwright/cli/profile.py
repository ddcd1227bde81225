"""`shardwright profile`."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardwright.cli.output import terminal_width, write, write_json
from shardwright.errors import bad

if TYPE_CHECKING:
    from shardwright.measure.run import Progress
    from shardwright.spec.cluster import Cluster
    from shardwright.spec.machine_profile import MachineProfile

HELP = """Measure this machine's devices and links, and plan with what they really do.

About thirty matrix products of training sizes, forward and both gradients, with attention, memory-bound operators and
collectives, take away most of what is uncertain about a GPU that nobody has measured before. It needs PyTorch; the
machine should do nothing else meanwhile. Interrupt it at any time: the same command goes on where it stopped.

Examples:

\b
  shardwright profile -o profile.json
  shardwright profile -o profile.json --minutes 10 --gpu H200
  shardwright plan --model llama-3.1-8b --cluster 4x8xH200 --global-batch 256 --seq-len 8192 \\
      --machine-profile profile.json
  shardwright profile --device cpu -o cpu.json --json
"""
LONGEST_MINUTES = 240.0
BAR_WIDTH, LINES = 24, 10


def profile(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Write the profile here.")] = Path(
        "profile.json"
    ),
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="cuda or cpu; the GPU if there is one, if not given.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the GPU is in the catalogue (`shardwright gpus`), or what to call one it does not have.",
        ),
    ] = None,
    minutes: Annotated[float, typer.Option(metavar="N", help="About how long to measure.")] = 3.0,
    links: Annotated[bool, typer.Option("--links/--no-links", help="Measure collectives as well.")] = True,
    restart: Annotated[
        bool,
        typer.Option("--restart/--resume", help="Begin anew, or go on with the rows in FILE.partial."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
) -> None:
    from shardwright.cost.efficiency import Analytic
    from shardwright.cost.profile_summary import family_summaries, link_summaries
    from shardwright.measure.custom import cluster_fragment
    from shardwright.measure.run import partial_path
    from shardwright.measure.run import profile as measure
    from shardwright.report.measured import profile_document, profile_text

    if not 0 < minutes <= LONGEST_MINUTES:
        raise bad("--minutes", f"{minutes:g} is not above 0 and up to {LONGEST_MINUTES:g}", "3 is the default")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        result = measure(
            out, device=device, gpu=gpu, minutes=minutes, links=links, restart=restart, date=today, report=_shown
        )
    except KeyboardInterrupt:
        print(f"\ninterrupted; the rows so far are in {partial_path(out)}, the same command goes on", file=sys.stderr)
        raise
    pool, base, fragment = _cluster(result).pools[0], Analytic(), cluster_fragment(result)
    summary = family_summaries(base, pool, result), link_summaries(base, pool, result)
    if json:
        write_json(profile_document(result, out, *summary, fragment))
    else:
        write(profile_text(result, out, *summary, fragment, terminal_width()))


def _cluster(result: MachineProfile) -> Cluster:
    from shardwright.measure.custom import cluster_fragment
    from shardwright.spec.load_cluster import build_cluster

    return build_cluster(cluster_fragment(result), "profile")


def _shown(progress: Progress) -> None:
    """Show how far the measuring is: a bar on a terminal, else ten lines in all."""
    done, total = progress.done, progress.total
    words = f"{done}/{total} {_words(progress)}"
    if sys.stderr.isatty():
        filled = BAR_WIDTH * done // total
        end = "\r\033[K" if done == total else ""
        print(f"\r\033[K[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {words}{end}", end="", file=sys.stderr, flush=True)
    elif LINES * done // total > LINES * (done - 1) // total:
        print(f"measured {words}", file=sys.stderr, flush=True)


def _words(progress: Progress) -> str:
    from shardwright.spec.machine_profile import OperatorTime
    from shardwright.units import format_bytes, format_seconds

    row = progress.row
    found = format_seconds(row.seconds) if row.seconds else "cannot be run here"
    if isinstance(row, OperatorTime):
        return f"{row.kind} {row.direction} {row.dtype}: {found}"
    return f"{row.collective} of {row.ranks}, {format_bytes(row.bytes)}: {found}"


profile.__doc__ = HELP
