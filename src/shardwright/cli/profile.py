"""`shardwright profile`."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardwright.cli import options
from shardwright.cli.output import terminal_width, write, write_json
from shardwright.commands import option
from shardwright.errors import bad

if TYPE_CHECKING:
    from shardwright.measure.run import MeasureProgress, Row
    from shardwright.spec.cluster import Cluster
    from shardwright.spec.read.machine_profile import MachineProfile

LONGEST_MINUTES = 240.0
BAR_WIDTH, LINES = 24, 10
CLEAR = "\r\033[K"


def profile(
    out: Annotated[Path, option("--out", "-o", metavar="FILE", help="Write the profile here.")] = Path("profile.json"),
    device: Annotated[
        str | None, option(metavar="NAME", help="cuda or cpu; by default the GPU if there is one.")
    ] = None,
    gpu: Annotated[
        str | None,
        option(
            metavar="NAME",
            help="Name of the GPU in the catalogue (`shardwright gpus`), or a name for one that is not there.",
        ),
    ] = None,
    minutes: Annotated[float, option(metavar="N", help="Minutes to measure, about.")] = 3.0,
    links: Annotated[bool, option("--links/--no-links", help="Measure collectives as well.")] = True,
    restart: Annotated[
        bool,
        option("--restart/--resume", help="Begin anew, or go on with the rows in FILE.partial."),
    ] = False,
    json: options.AsJson = False,
) -> None:
    """Measure this machine's devices and links, and plan with what they really do.

    It times about thirty matrix products of training sizes (forward and both gradients), attention, memory-bound
    operators and collectives: most of what is uncertain about a GPU that nobody has measured. It needs PyTorch, and a
    machine that does nothing else. Interrupt it at any time: the same command goes on where it stopped.

    Examples:

    \b
      shardwright profile -o profile.json
      shardwright profile -o profile.json --minutes 10 --gpu H200
      shardwright plan --model llama-3.1-8b --cluster 4x8xH200 --global-batch 256 --seq-len 8192 \\
          --machine-profile profile.json
      shardwright profile --device cpu -o cpu.json --json
    """
    from shardwright.cost.learned import default_efficiency
    from shardwright.cost.measured.summary import family_summaries, link_summaries
    from shardwright.measure.device import cluster_fragment
    from shardwright.measure.run import partial_path
    from shardwright.measure.run import profile as measure
    from shardwright.reports.text.measured import profile_document, profile_text

    if not 0 < minutes <= LONGEST_MINUTES:
        raise bad("--minutes", f"must be above 0 and at most {LONGEST_MINUTES:g}, not {minutes:g}", "3 is the default")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        result = measure(
            out, device=device, gpu=gpu, minutes=minutes, links=links, restart=restart, date=today, report=reporter()
        )
    except KeyboardInterrupt:
        print(f"\ninterrupted; the rows so far are in {partial_path(out)}, the same command goes on", file=sys.stderr)
        raise
    pool, base, fragment = _cluster(result).pools[0], default_efficiency(), cluster_fragment(result)
    summary = family_summaries(base, pool, result), link_summaries(base, pool, result)
    if json:
        write_json(profile_document(result, out, *summary, fragment))
    else:
        write(profile_text(result, out, *summary, fragment, terminal_width()))


def _cluster(result: MachineProfile) -> Cluster:
    from shardwright.measure.device import cluster_fragment
    from shardwright.spec.read.cluster import build_cluster

    return build_cluster(cluster_fragment(result), "profile")


def reporter() -> Callable[[MeasureProgress], None]:
    """Return a function that shows how far the measuring is: a bar on a terminal, else ten lines in all; and a line for
    what cannot be measured, once for each kind, pass and precision."""
    reported: set[str] = set()

    def show(progress: MeasureProgress) -> None:
        name = _name(progress.row)
        if progress.problem and name not in reported:
            reported.add(name)
            print(f"{CLEAR if sys.stderr.isatty() else ''}left out: {name}: {progress.problem}", file=sys.stderr)
        _show_bar(progress) if sys.stderr.isatty() else _show_line(progress)

    return show


def _show_bar(progress: MeasureProgress) -> None:
    done, total = progress.done, progress.total
    filled = BAR_WIDTH * done // total
    bar = "#" * filled + "." * (BAR_WIDTH - filled)
    end = CLEAR if done == total else ""
    print(f"{CLEAR}[{bar}] {done}/{total} {_words(progress)}{end}", end="", file=sys.stderr, flush=True)


def _show_line(progress: MeasureProgress) -> None:
    done, total = progress.done, progress.total
    if LINES * done // total > LINES * (done - 1) // total:
        print(f"measured {done}/{total} {_words(progress)}", file=sys.stderr, flush=True)


def _words(progress: MeasureProgress) -> str:
    from shardwright.units import format_seconds

    return f"{_name(progress.row)}: {'left out' if progress.problem else format_seconds(progress.row.seconds)}"


def _name(row: Row) -> str:
    from shardwright.spec.read.machine_profile import OperatorTime
    from shardwright.units import format_bytes

    if isinstance(row, OperatorTime):
        return f"{row.kind} {row.direction} {row.dtype}"
    return f"{row.collective} of {row.ranks}, {format_bytes(row.bytes)}"
