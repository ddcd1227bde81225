"""The `shardwright` command: its sub-commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import os
import sys

import typer

from shardwright import __version__
from shardwright.cli import catalogue, check, evaluate, export, plan
from shardwright.errors import Problem, SpecError

app = typer.Typer(
    name="shardwright",
    help="Plans the training of large models on the GPUs you have or could rent: the best parallel strategy, how fast, "
    "how much memory, how much money, how sure, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("plan")(plan.plan)
app.command("evaluate")(evaluate.evaluate)
app.command("export")(export.export)
app.command("check")(check.check)
app.command("gpus")(catalogue.gpus)
app.command("models")(catalogue.models)
app.command("prices")(catalogue.prices)


def _show_version(value: bool) -> None:
    if value:
        print(f"shardwright {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_show_version, is_eager=True),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Options of all commands."""


def main() -> None:
    """Run the command line; exit 0 on success, 2 on bad input, 3 where no strategy is feasible."""
    debug = "--debug" in sys.argv
    try:
        app()
    except SpecError as error:
        if debug:
            raise
        complain(error.problems)
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if debug:
            raise
        complain(
            (Problem(str(error.filename or "file"), error.strerror or str(error), "check the path and its rights"),)
        )
        sys.exit(2)


def complain(problems: tuple[Problem, ...]) -> None:
    """Print every problem with its remedy on standard error."""
    for problem in problems:
        place = f"{problem.path}: " if problem.path else ""
        print(f"error: {place}{problem.message}", file=sys.stderr)
        if problem.hint:
            print(f"  {problem.hint}", file=sys.stderr)
