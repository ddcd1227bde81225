"""`shardwright export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.cli.inputs import require_target
from shardwright.errors import bad, suggestion

LAUNCHERS = ("torchrun", "slurm")
EXAMPLES = """Write a plan as the configuration of a training framework.

Examples:

  shardwright export plan.json --to megatron -o run.sh

  shardwright export plan.json --to megatron --launcher slurm -o job.sbatch
"""


def export(
    plan: Annotated[Path, typer.Argument(help="A plan file, as `plan --out` writes it.")],
    to: Annotated[str, typer.Option(help="Target: megatron (Megatron-LM core_v0.19).")],
    launcher: Annotated[str, typer.Option(help="torchrun or slurm.")] = "torchrun",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write here instead of standard output.")] = None,
) -> None:
    from shardwright.export.megatron import to_megatron
    from shardwright.export.megatron_launch import launch_script
    from shardwright.files import write_atomically
    from shardwright.plan.document import load_plan

    require_target(to)
    if launcher not in LAUNCHERS:
        raise bad(f"--launcher {launcher}", "is not known", suggestion(launcher, LAUNCHERS))
    found = load_plan(plan)
    text = launch_script(found, to_megatron(found), launcher=launcher)  # type: ignore[arg-type]
    if out is None:
        print(text, end="")
    else:
        write_atomically(out, text)


export.__doc__ = EXAMPLES
