"""`shardwright.export`: the targets that a plan can be exported to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shardwright.errors import bad, suggestion
from shardwright.exporters.exported import Exported
from shardwright.plans.plan import Plan

LAUNCHERS = ("torchrun", "slurm")


def export(plan: Plan, to: str, *, launcher: str = "torchrun") -> Exported:
    """Return the files that make target `to` run a plan, or show it.

    `launcher` says how processes start, for targets with a launch script. Raises SpecError for a plan that is not
    legal, and names all of it that the target cannot express.
    """
    if to not in TARGETS:
        raise bad(f"--to {to}", "there is no such target", f"supported: {', '.join(TARGETS)}")
    if launcher not in LAUNCHERS:
        raise bad(f"--launcher {launcher}", "is not known", suggestion(launcher, LAUNCHERS))
    return TARGETS[to](plan, launcher)


def _megatron(plan: Plan, launcher: str) -> Exported:
    from shardwright.exporters.megatron.files import megatron_files

    return megatron_files(plan, launcher)


def _perfetto(plan: Plan, launcher: str) -> Exported:
    from shardwright.exporters.perfetto.trace import export_trace

    return export_trace(plan)


TARGETS: Mapping[str, Callable[[Plan, str], Exported]] = {"megatron": _megatron, "perfetto": _perfetto}
