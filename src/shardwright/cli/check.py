"""`shardwright check`."""

from __future__ import annotations

from click.exceptions import Exit

from shardwright.cli import options
from shardwright.cli.output import write, write_json
from shardwright.errors import SpecError, merged

NOBODY = "the plan is legal, but no trainer of its framework runs it: `shardwright export` says why"


def check(
    plan: options.PlanFile,
    json: options.AsJson = False,
) -> None:
    """List everything that is wrong with a plan (exit 2), or say which trainers run it.

    Examples:

    \b
      shardwright check plan.json
      shardwright check plan.json --json
    """
    from shardwright.plans.abilities import framework_problems
    from shardwright.plans.check import check as violations
    from shardwright.plans.document import load_plan
    from shardwright.reports.documents.ranking import problem_documents
    from shardwright.trainers.runs import runners

    checked = load_plan(plan)
    problems = violations(checked) or tuple(framework_problems(checked))
    names = () if problems else runners(checked)
    if json:
        write_json({"legal": not problems, "violations": problem_documents(problems), "trainers": list(names)})
    if problems:
        raise Exit(2) if json else SpecError(*merged(problems))
    if not json:
        write(f"the plan is legal; {' and '.join(names)} run{'s' * (len(names) == 1)} it" if names else NOBODY)
