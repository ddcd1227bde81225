"""`shardwright export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.cli.destination import deliver, require_writable
from shardwright.cli.inputs import require_target
from shardwright.cli.output import write, write_json
from shardwright.errors import bad, suggestion

LAUNCHERS = ("torchrun", "slurm")
HELP = """Write a plan as the configuration of a training framework. What it cannot express is refused by name.

Examples:

\b
  shardwright export plan.json --to megatron -o run.sh
  shardwright export plan.json --to megatron --launcher slurm -o job.sbatch
  shardwright export plan.json --to megatron --json
"""


def export(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan file, as `plan --out` writes it.")],
    to: Annotated[str, typer.Option(metavar="TARGET", help="megatron (Megatron-LM core_v0.19).")],
    launcher: Annotated[str, typer.Option(metavar="NAME", help="torchrun or slurm.")] = "torchrun",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write here instead of standard output.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print arguments and script as one JSON document.")] = False,
) -> None:
    from shardwright.exporters.megatron.export import to_megatron
    from shardwright.exporters.megatron.launch import launch_script
    from shardwright.plans.document import load_plan

    require_target(to)
    require_writable(out, [plan], json=json)
    if launcher not in LAUNCHERS:
        raise bad(f"--launcher {launcher}", "is not known", suggestion(launcher, LAUNCHERS))
    found = load_plan(plan)
    exported = to_megatron(found)
    text = launch_script(found, exported, launcher=launcher)  # type: ignore[arg-type]
    if out is not None:
        deliver(text, out)
    if json:
        write_json(
            {
                "target": to,
                "version": exported.version,
                "environment": dict(exported.environment),
                "arguments": list(exported.arguments),
                "launcher": launcher,
                "script": text,
            }
        )
    elif out is None:
        write(text)


export.__doc__ = HELP
