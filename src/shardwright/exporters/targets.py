"""`shardwright.export`: the targets that a plan can be exported to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module

from shardwright.errors import bad, suggestion
from shardwright.exporters.exported import Exported
from shardwright.plans.plan import Plan

COMMENTED = (".sh", ".py", ".yaml")
LAUNCHERS = ("torchrun", "slurm")
# The module and the function of each target, imported when it is asked for.
TARGETS: Mapping[str, tuple[str, str]] = {
    "megatron": ("megatron.launch", "megatron_files"),
    "bridge": ("bridge.recipe", "export_recipe"),
    "torchtitan": ("torchtitan.config", "export_config"),
    "accelerate": ("accelerate.config", "export_config"),
    "deepspeed": ("deepspeed.config", "export_config"),
    "skypilot": ("skypilot.task", "export_task"),
    "kubernetes": ("kubernetes.jobset", "export_jobset"),
    "perfetto": ("perfetto.trace", "export_trace"),
}
LAUNCHED = ("megatron",)  # whose launch script depends on the launcher


def export(plan: Plan, to: str, *, launcher: str = "torchrun") -> Exported:
    """Return the files that make target `to` run a plan, or show it.

    `launcher` says how processes start, for targets with a launch script. Raises SpecError for a plan that is not
    legal, and names all of it that the target cannot express.
    """
    if to not in TARGETS:
        raise bad(f"--to {to}", "there is no such target", f"supported: {', '.join(TARGETS)}")
    if launcher not in LAUNCHERS:
        raise bad(f"--launcher {launcher}", "is not known", suggestion(launcher, LAUNCHERS))
    module, name = TARGETS[to]
    write: Callable[..., Exported] = getattr(import_module(f"{__package__}.{module}"), name)
    return _headed(write(plan, launcher) if to in LAUNCHED else write(plan), plan.model.guesses)


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
