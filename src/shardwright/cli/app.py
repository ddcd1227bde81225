"""The `shardwright` command: its sub-commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import typer
from typer.exceptions import Abort, TyperException
from typer.main import get_command

from shardwright import __version__
from shardwright.cli import (
    catalogue,
    check,
    checkpoint,
    discover,
    draw,
    evaluate,
    export,
    fit,
    mcp,
    plan,
    prices,
    profile,
    recover,
    report,
    schema,
    serve,
    shop,
    simulate_spot,
    spmd,
    tokens,
    train,
    validate,
)
from shardwright.cli.output import complain, write
from shardwright.errors import Problem, SpecError
from shardwright.reports.words import flagged

BAD_INPUT, INTERRUPTED = 2, 130
HELP = """Plans the training of large models on the GPUs you have or could rent: the best parallel strategy, how fast,
how much memory, how much money, how sure, and why.

Start with:

\b
  shardwright plan --model llama-2-70b --cluster 32x8xA800-SXM-80 \\
      --global-batch 512 --seq-len 4096 --out plan.json
  shardwright export plan.json --to megatron -o run.sh

Exit codes: 0 success, 2 bad input, 3 no strategy is feasible.
"""

app = typer.Typer(
    name="shardwright",
    help=HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("plan", short_help="Find the best parallel strategy for a model on a cluster.")(plan.plan)
app.command("shop", short_help="Find which GPUs to rent: the front of time, dollars and risk.")(shop.shop)
app.command("fit", short_help="Say whether training a model fits a GPU, and what would make it.")(fit.fit)
app.command("evaluate", short_help="Predict your own plan and explain the difference to the best.")(evaluate.evaluate)
app.command("export", short_help="Write a plan as the configuration of a training framework.")(export.export)
app.command("draw", short_help="Draw when each stage of a plan computes what, as SVG.")(draw.draw)
app.command("report", short_help="Show a result as one HTML page.")(report.report)
app.command("check", short_help="List everything that is wrong with a plan.")(check.check)
app.command("validate", short_help="Predict training runs and compare with what was measured.")(validate.validate)
app.command("discover", short_help="Write the cluster file of the machines at hand.")(discover.discover)
app.command("profile", short_help="Measure this machine, to plan with its own figures.")(profile.profile)
app.command("serve", short_help="Serve a page on which the plan follows the question.")(serve.serve)
app.command("mcp", short_help="Serve the planner to an assistant (Model Context Protocol).")(mcp.mcp)
app.command("train", short_help="Run a plan on torch.distributed.")(train.train)
app.add_typer(spmd.app, short_help="Shard any PyTorch module over unequal GPUs.")
app.add_typer(checkpoint.app, name="checkpoint", short_help="Write checkpoints for other tools, and read them back.")
app.command("recover", short_help="Show what a recovery would move.")(recover.recover)
app.command("simulate-spot", short_help="Replay which spot machines were there over a plan.")(
    simulate_spot.simulate_spot
)
app.command("tokens", short_help="Make a token file to train on from texts.")(tokens.tokens)
app.command("schema", short_help="Print the JSON schema of a document.")(schema.schema)
app.command("gpus", short_help="List GPUs, with sources and dates.")(catalogue.gpus)
app.command("models", short_help="List models, or show how one is understood.")(catalogue.models)
app.command("prices", short_help="List prices of machines, with sources and dates.")(prices.prices)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error; may stand anywhere."),
) -> None:
    if version:
        write(f"shardwright {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        write(context.get_help())


options.__doc__ = HELP


@cache
def command() -> Any:
    """Return the command line, made once in a process: that takes longer than a small command."""
    return get_command(app)


def main() -> None:
    """Run the command line; exit 0 on success, 2 on bad input, 3 where no strategy is feasible."""
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        code = command()(args=arguments, prog_name="shardwright", standalone_mode=False)
    except (SpecError, TyperException, OSError) as error:
        if debug:
            raise
        complain(_problems(error))
        sys.exit(BAD_INPUT)
    except (KeyboardInterrupt, Abort):
        sys.exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _problems(error: SpecError | TyperException | OSError) -> tuple[Problem, ...]:
    """Return what is wrong, in the one form in which everything wrong is told."""
    if isinstance(error, SpecError):
        return tuple(
            Problem(flagged(problem.path), flagged(problem.message), flagged(problem.hint))
            for problem in error.problems
        )
    if isinstance(error, OSError):
        return (Problem(str(error.filename or "file"), error.strerror or str(error), "check the path and its rights"),)
    context = getattr(error, "ctx", None)
    command = "shardwright" if context is None else context.command_path
    return (Problem("", error.format_message(), f"see `{command} --help`"),)
