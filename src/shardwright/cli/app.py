"""The `shardwright` command: its sub-commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import click
from click.exceptions import Abort, ClickException, Exit, NoArgsIsHelpError

import shardwright
from shardwright.cli import completion
from shardwright.cli.output import complain, write
from shardwright.commands import CommandGroup, option
from shardwright.errors import Problem, SpecError

BAD_INPUT, INTERRUPTED = 2, 130
PACKAGES = ("numpy", "highspy", "click", "pyyaml", "torch", "transformers", "mcp")

COMMANDS = {
    "plan": ("shardwright.cli.plan:plan", "Find the best parallel strategy for a model on a cluster."),
    "shop": ("shardwright.cli.shop:shop", "Find which GPUs to rent: the front of time, dollars and risk."),
    "fit": ("shardwright.cli.fit:fit", "Say whether training a model fits a GPU, and what would make it."),
    "evaluate": ("shardwright.cli.evaluate:evaluate", "Predict your own plan and explain the difference to the best."),
    "diagnose": ("shardwright.cli.diagnose:diagnose", "Say why a training run is slow, or out of memory."),
    "export": ("shardwright.cli.export:export", "Write a plan as the configuration of a training framework."),
    "draw": ("shardwright.cli.draw:draw", "Draw when each stage of a plan computes what, as SVG."),
    "report": ("shardwright.cli.report:report", "Show a result as one HTML page."),
    "check": ("shardwright.cli.check:check", "List everything that is wrong with a plan."),
    "validate": ("shardwright.cli.validate:validate", "Predict training runs and compare with what was measured."),
    "discover": ("shardwright.cli.discover:discover", "Write the cluster file of the machines at hand."),
    "profile": ("shardwright.cli.profile:profile", "Measure this machine, to plan with its own figures."),
    "calibrate": ("shardwright.cli.calibrate:calibrate", "Calibrate on runs of your own site."),
    "serve": ("shardwright.cli.serve:serve", "Serve a page on which the plan follows the question."),
    "mcp": ("shardwright.cli.serve:mcp", "Serve the planner to an assistant (Model Context Protocol)."),
    "train": ("shardwright.cli.train:train", "Run a plan on torch.distributed."),
    "rehearse": ("shardwright.cli.rehearse:rehearse", "Run one step in the trainer's own code, without GPUs."),
    "recover": ("shardwright.cli.recover:recover", "Show what a recovery would move."),
    "simulate-spot": (
        "shardwright.cli.simulate_spot:simulate_spot",
        "Replay which spot machines were there over a plan.",
    ),
    "tokens": ("shardwright.cli.tokens:tokens", "Make a token file to train on from texts."),
    "support": ("shardwright.cli.support:support", "Say which trainer runs what, or who runs a model."),
    "schema": ("shardwright.cli.schema:schema", "Print the JSON schema of a document."),
    "gpus": ("shardwright.cli.catalogue:gpus", "List GPUs, with sources and dates."),
    "models": ("shardwright.cli.catalogue:models", "List models, or show how one is understood."),
    "prices": ("shardwright.cli.prices:prices", "List prices of machines, with sources and dates."),
    "spmd": ("shardwright.cli.spmd:app", "Shard any PyTorch module over unequal GPUs."),
    "checkpoint": ("shardwright.cli.checkpoint:app", "Write checkpoints for other tools, and read them back."),
}


def options(
    version: Annotated[bool, option("--version", help="Print the version.")] = False,
    json: Annotated[bool, option("--json", help="With --version: what a report of a fault needs, as JSON.")] = False,
    debug: Annotated[bool, option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
    show_completion: Annotated[
        str | None, option(metavar="SHELL", help="Print the script that completes words in bash, zsh or fish.")
    ] = None,
) -> None:
    """Plans the training of large models on the GPUs you have or could rent: the best parallel strategy, how fast,
    how much memory, how much money, how sure, and why.

    Start with:

    \b
      shardwright plan --model llama-2-70b --cluster 32x8xA800-SXM-80 \\
          --global-batch 512 --seq-len 4096 --out plan.json
      shardwright export plan.json --to megatron -o run.sh

    Exit codes: 0 success, 2 bad input, 3 no plan is feasible, or nobody runs it.
    """
    context = click.get_current_context()
    if version and json:
        from shardwright.cli.output import write_json

        write_json(versions())
    elif version:
        write(f"shardwright {shardwright.__version__} ({commit() or 'commit unknown'})")
    elif show_completion is not None:
        write(completion.script(context.command, show_completion))
    elif context.invoked_subcommand is None:
        write(context.get_help())
    if version or show_completion is not None:
        raise Exit


def versions() -> dict[str, object]:
    """Return what a report of a fault needs: versions of this program, of Python and of what it uses."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    packages: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            packages[name] = version_of(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "shardwright": shardwright.__version__,
        "commit": commit() or None,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": platform.machine(),
        "packages": packages,
    }


def commit() -> str:
    """Return the commit of the running code, `-dirty` where files differ from it; empty if nothing tells.

    A wheel has it in `commit.txt` (`hatch_build.py`); a checkout asks git.
    """
    package = Path(shardwright.__file__).parent
    if (package / "commit.txt").is_file():
        return (package / "commit.txt").read_text(encoding="utf-8").strip()
    checkout = package.parents[1]
    if package.parent.name != "src" or not (checkout / ".git").exists():
        return ""
    import subprocess

    describe = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


app = CommandGroup("shardwright", COMMANDS, options=options)


def main() -> None:
    """Run the command line; exit 0 on success, 2 on bad input, 3 where no plan is feasible or nobody runs it."""
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        code = app(args=arguments, prog_name="shardwright", standalone_mode=False)
    except NoArgsIsHelpError as asked:
        write(asked.format_message())
        sys.exit(0)
    except (SpecError, ClickException, OSError) as error:
        if debug:
            raise
        complain(problems_of(error))
        sys.exit(BAD_INPUT)
    except (KeyboardInterrupt, Abort):
        sys.exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def problems_of(error: SpecError | ClickException | OSError) -> tuple[Problem, ...]:
    """Return what is wrong, in the one form in which everything wrong is told."""
    if isinstance(error, SpecError):
        from shardwright.reports.words import flagged

        return tuple(
            Problem(flagged(problem.path), flagged(problem.message), flagged(problem.hint))
            for problem in error.problems
        )
    if isinstance(error, OSError):
        return (Problem(str(error.filename or "file"), error.strerror or str(error), "check the path and its rights"),)
    context = getattr(error, "ctx", None)
    command = "shardwright" if context is None else context.command_path
    return (Problem("", error.format_message(), f"see `{command} --help`"),)
