"""`shardwright.export`: the targets that a plan can be exported to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from shardwright.errors import bad, suggestion
from shardwright.exporters.exported import Exported
from shardwright.plans.plan import Plan

COMMENTED = (".sh", ".py", ".yaml")
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
    return _headed(TARGETS[to](plan, launcher), plan.model.guesses)


def _headed(exported: Exported, guesses: tuple[str, ...]) -> Exported:
    """Return the files with what was guessed of the model at the head of each that takes comments."""
    if not guesses:
        return exported
    lines = [f"# Guessed of the model, not known: {' '.join(words.split())}" for words in guesses]
    files = {
        name: _with_comments(text, lines) if name.endswith(COMMENTED) else text for name, text in exported.files.items()
    }
    return replace(exported, files=files, document={**exported.document, "guesses": list(guesses)})


def _with_comments(text: str, lines: list[str]) -> str:
    first, newline, rest = text.partition("\n")
    head = [first] if first.startswith("#!") else []
    return "\n".join([*head, *lines, rest if head else first + newline + rest])


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
