"""`shardwright check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.errors import SpecError


def check(plan: Annotated[Path, typer.Argument(help="A plan file.")]) -> None:
    """List everything that is wrong with a plan; exit 2 if anything is.

    Example: shardwright check plan.json
    """
    from shardwright.plan.check import check as violations
    from shardwright.plan.document import load_plan

    problems = violations(load_plan(plan))
    if problems:
        raise SpecError(*problems)
    print("the plan is legal")
