"""`python -m tools.refit`: fits what ships with the package to measurements."""

from __future__ import annotations

import sys

from click.exceptions import ClickException

from shardwright.commands import CommandGroup
from shardwright.errors import SpecError

BAD_INPUT = 2
COMMANDS = {
    "accuracy": ("tools.refit.accuracy_command:accuracy", "Held-out predictions beside the release before."),
    "cards": ("tools.refit.cards:cards", "Landmarks among published runs, predicted anew."),
    "operators": ("tools.refit.operators_command:operators", "Speed of operators and collectives."),
    "memory": ("tools.refit.memory_command:memory", "Memory that frameworks keep, from training runs."),
    "published": ("tools.refit.published:published", "The tables of published runs that ship, from larger ones."),
    "ratios": ("tools.refit.ratios:ratios", "How sure comparisons of two plans are, from sweeps of training runs."),
    "intervals": ("tools.refit.overheads_command:intervals", "Width of intervals, around the constants that ship."),
    "rare": ("tools.refit.rare:rare", "What of strategies hardly any published run has."),
    "unseen": ("tools.refit.unseen:unseen", "Runs that no constant has seen, predicted."),
    "overheads": ("tools.refit.overheads_command:overheads", "Overheads of frameworks, from training runs."),
}
HELP = "Fit what predictions rest on to measurements; docs/calibration.md."

app = CommandGroup("python -m tools.refit", COMMANDS, help=HELP)


def main() -> None:
    """Run the command; exit 2 on bad input."""
    try:
        app(prog_name="python -m tools.refit", standalone_mode=False)
    except (SpecError, ClickException) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
