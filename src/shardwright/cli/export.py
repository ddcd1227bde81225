"""`shardwright export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.cli.destination import deliver, require_writable
from shardwright.cli.output import write, write_json

HELP = """Write a plan as the configuration of a training framework. What it cannot express is refused by name.

Examples:

\b
  shardwright export plan.json --to megatron -o run.sh
  shardwright export plan.json --to megatron --launcher slurm -o job.sbatch
  shardwright export plan.json --to megatron --json
  shardwright export plan.json --to perfetto -o trace.json       # open it at https://ui.perfetto.dev
"""


def export(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan file, as `plan --out` writes it.")],
    to: Annotated[str, typer.Option(metavar="TARGET", help="megatron (Megatron-LM core_v0.19) or perfetto.")],
    launcher: Annotated[str, typer.Option(metavar="NAME", help="torchrun or slurm.")] = "torchrun",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write here instead of standard output.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print arguments and script as one JSON document.")] = False,
) -> None:
    from shardwright.exporters.targets import export as files_for
    from shardwright.plans.document import load_plan

    require_writable(out, [plan], json=json)
    exported = files_for(load_plan(plan), to, launcher=launcher)
    if out is not None:
        deliver(exported.main, out)
    if json:
        write_json({"target": exported.target, "version": exported.version, **exported.document})
    elif out is None:
        write(exported.main)


export.__doc__ = HELP
