"""`python -m shardwright.calibrate`: fits what ships with the package to measurements."""

from __future__ import annotations

import sys

import typer
from typer.exceptions import TyperException

from shardwright.calibrate.memory_command import memory
from shardwright.calibrate.operators_command import operators
from shardwright.calibrate.overheads_command import overheads
from shardwright.errors import SpecError

BAD_INPUT = 2

app = typer.Typer(
    name="python -m shardwright.calibrate",
    help="Fit what predictions rest on to measurements; docs/calibration.md.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("operators", short_help="Speed of operators and collectives.")(operators)
app.command("memory", short_help="Memory that frameworks keep, from training runs.")(memory)
app.command("overheads", short_help="Overheads of frameworks, from training runs.")(overheads)


def main() -> None:
    """Run the command; exit 2 on bad input."""
    try:
        app(prog_name="python -m shardwright.calibrate", standalone_mode=False)
    except (SpecError, TyperException) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
