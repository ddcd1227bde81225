"""`shardwright.export`: files for a target, where what they start runs the plan."""

from __future__ import annotations

from shardwright.errors import SpecError
from shardwright.exporters.exported import Exported
from shardwright.exporters.runner import runner_of
from shardwright.exporters.targets import LAUNCHING
from shardwright.exporters.targets import export as files_for
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.reports.text.problems import merged
from shardwright.runtime.layout.limits import unrunnable


def export(plan: Plan, to: str, *, launcher: str = "torchrun") -> Exported:
    """Return the files that make target `to` run a plan, or show it (`exporters.targets.export`).

    Raises SpecError as there, and for a target that only brings machines together where the trainer that they start,
    `shardwright train`, does not run the plan.
    """
    if to in LAUNCHING and not check(plan) and runner_of(plan).name == "shardwright":
        problems = unrunnable(plan)
        if problems:
            raise SpecError(*merged(problems))
    return files_for(plan, to, launcher=launcher)
