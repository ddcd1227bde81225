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


def _skypilot(plan: Plan, launcher: str) -> Exported:
    from shardwright.exporters.skypilot.task import export_task

    return export_task(plan)


def _kubernetes(plan: Plan, launcher: str) -> Exported:
    from shardwright.exporters.kubernetes.jobset import export_jobset

    return export_jobset(plan)


def _torchtitan(plan: Plan, launcher: str) -> Exported:
    from shardwright.exporters.torchtitan.config import export_config

    return export_config(plan)


def _accelerate(plan: Plan, launcher: str) -> Exported:
    from shardwright.exporters.accelerate.config import export_config

    return export_config(plan)


def _deepspeed(plan: Plan, launcher: str) -> Exported:
    from shardwright.exporters.deepspeed.config import export_config

    return export_config(plan)


def _bridge(plan: Plan, launcher: str) -> Exported:
    from shardwright.exporters.bridge.recipe import export_recipe

    return export_recipe(plan)


TARGETS: Mapping[str, Callable[[Plan, str], Exported]] = {
    "megatron": _megatron,
    "bridge": _bridge,
    "torchtitan": _torchtitan,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "skypilot": _skypilot,
    "kubernetes": _kubernetes,
    "perfetto": _perfetto,
}
