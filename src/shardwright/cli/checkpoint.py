"""`shardwright checkpoint`: checkpoints for other tools, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.cli.output import write
from shardwright.commands import CommandGroup, argument, option
from shardwright.errors import SpecError, bad, suggestion
from shardwright.plans.document import load_plan

NAMES = ("shardwright", "huggingface", "megatron")
HELP = """Write checkpoints as whole tensors for other tools, and read them back.

\b
  shardwright checkpoint export run -o step.safetensors
  shardwright checkpoint export run -o step-dcp
  shardwright checkpoint export run --plan plan.json --names huggingface -o weights
  shardwright checkpoint import step-dcp -o run-2

A name that ends in .safetensors is one file; any other a folder of torch.distributed.checkpoint.
"""


def export(
    source: Annotated[Path, argument(metavar="DIR", help="A checkpoint, or the folder of a run.")],
    out: Annotated[Path, option("--out", "-o", metavar="PATH", help="A new .safetensors file, or a new folder.")],
    names: Annotated[
        str,
        option(
            metavar="NAMES",
            help="Whose names tensors have: shardwright (the whole state, which `import` reads back), huggingface "
            "(weights and config.json, or adapters, in a folder that `from_pretrained` opens) or megatron (weights "
            "that Megatron-LM loads with --ckpt-format torch --finetune, for one GPU; its tools/checkpoint/convert.py "
            "cuts them).",
        ),
    ] = "shardwright",
    plan: Annotated[
        Path | None, option(metavar="PLAN", help="The plan that was trained, whose model names the tensors.")
    ] = None,
) -> int:
    """Write the newest checkpoint of a folder as whole tensors.

    \b
      shardwright checkpoint export run -o step.safetensors
      shardwright checkpoint export run -o step-dcp
      shardwright checkpoint export run --plan plan.json --names huggingface -o weights
      shardwright checkpoint export run --plan plan.json --names megatron -o weights
    """
    from shardwright.runtime.storage.exchange import export_checkpoint, export_weights
    from shardwright.trainers.runs import model_refusals

    if names not in NAMES:
        raise bad("--names", f"{names!r} is not known", suggestion(names, NAMES))
    if names != NAMES[0]:
        if plan is None:
            raise bad(f"--names {names}", "needs the model, which a checkpoint does not hold", "add --plan PLAN")
        trained = load_plan(plan)
        if names == "megatron" and (problems := model_refusals(names, trained.model, trained.cluster, trained.job)):
            raise SpecError(*problems)
        write(f"{out}: step {export_weights(source, out, trained.model, names, trained.job.adapter)}")
        return 0
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
