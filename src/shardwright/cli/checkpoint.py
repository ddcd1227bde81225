"""`shardwright checkpoint`: checkpoints for other tools, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.cli.output import write
from shardwright.commands import CommandGroup, argument, option

HELP = """Write checkpoints as whole tensors for other tools, and read them back.

\b
  shardwright checkpoint export run -o step.safetensors
  shardwright checkpoint export run -o step-dcp
  shardwright checkpoint import step-dcp -o run-2

A name that ends in .safetensors is one file; any other a folder of torch.distributed.checkpoint.
"""


def export(
    source: Annotated[Path, argument(metavar="DIR", help="A checkpoint, or the folder of a run.")],
    out: Annotated[Path, option("--out", "-o", metavar="PATH", help="A new .safetensors file, or a new folder.")],
) -> int:
    """Write the newest checkpoint of a folder as whole tensors.

    \b
      shardwright checkpoint export run -o step.safetensors
      shardwright checkpoint export run -o step-dcp
    """
    from shardwright.runtime.storage.exchange import export_checkpoint

    write(f"{out}: step {export_checkpoint(source, out)}")
    return 0


def import_(
    source: Annotated[Path, argument(metavar="PATH", help="What `export` wrote.")],
    out: Annotated[Path, option("--out", "-o", metavar="DIR", help="The folder of a run.")],
) -> int:
    """Read back what `export` wrote, as a checkpoint to resume from.

    \b
      shardwright checkpoint import step-dcp -o run-2
    """
    from shardwright.runtime.storage.exchange import import_checkpoint

    write(f"{import_checkpoint(source, out)}: train with --resume {out}")
    return 0


app = CommandGroup(
    "checkpoint",
    {
        "export": ("shardwright.cli.checkpoint:export", "Write the newest checkpoint of a folder as whole tensors."),
        "import": (
            "shardwright.cli.checkpoint:import_",
            "Read back what `export` wrote, as a checkpoint to resume from.",
        ),
    },
    help=HELP,
)
