"""The targets that a plan can be exported to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib import import_module

from shardwright.errors import Problem, bad, suggestion
from shardwright.exporters.exported import Exported
from shardwright.plans.plan import Plan
from shardwright.records import record

SCRIPT = ".sh"
COMMENTED = (SCRIPT, ".py", ".yaml")
LAUNCHERS = ("torchrun", "slurm")
Limits = Callable[[Plan], Iterable[Problem]]


@record(kw_only=False)
class Target:
    """A target: the module and the function that write its files, imported when they are asked for; of a trainer the
    framework that it is, as `frameworks.csv` names it, and the module whose `unsupported` says what it cannot run."""

    module: str
    function: str
    framework: str = ""
    limits: str = ""


TARGETS: Mapping[str, Target] = {
    "megatron": Target("megatron.launch", "megatron_files", "megatron", "megatron.limits"),
    "bridge": Target("bridge", "export_recipe", "megatron", "bridge"),
    "torchtitan": Target("torchtitan.config", "export_config", "torchtitan", "torchtitan.config"),
    "accelerate": Target("accelerate", "export_config", "fsdp", "accelerate"),
    "deepspeed": Target("deepspeed", "export_config", "deepspeed", "deepspeed"),
    "skypilot": Target("skypilot", "export_task"),
    "kubernetes": Target("kubernetes", "export_jobset"),
    "perfetto": Target("perfetto", "export_trace"),
}
TRAINERS = tuple(name for name, target in TARGETS.items() if target.framework)
LAUNCHING = ("skypilot", "kubernetes")  # which bring machines together for a trainer
LAUNCHED = ("megatron",)  # whose launch script depends on the launcher


def export(plan: Plan, to: str, *, launcher: str = "torchrun") -> Exported:
    """Return the files that make target `to` run a plan, or show it.

    `launcher` says how processes start, for targets with a launch script. Raises SpecError for a plan that is not
    legal, and names all of it that the target cannot express.
    """
    require_target(to)
    if launcher not in LAUNCHERS:
        raise bad(f"`launcher={launcher}`", "is not known", suggestion(launcher, LAUNCHERS))
    if launcher != LAUNCHERS[0] and to not in LAUNCHED:
        raise bad(f"`launcher={launcher}`", f"is for {' and '.join(LAUNCHED)} alone, not {to}", "leave it out")
    target = TARGETS[to]
    write: Callable[..., Exported] = getattr(import_module(f"{__package__}.{target.module}"), target.function)
    return _headed(write(plan, launcher) if to in LAUNCHED else write(plan), plan)


def require_target(to: str) -> None:
    """Raise SpecError for what is no target."""
    if to not in TARGETS:
        raise bad(f"`to={to}`", "there is no such target", f"supported: {', '.join(TARGETS)}")


def limits_of(to: str) -> Limits | None:
    """Return what says why a trainer cannot run a legal plan, None for targets that are no trainers."""
    if to not in TRAINERS:
        return None
    found: Limits = import_module(f"{__package__}.{TARGETS[to].limits}").unsupported
    return found


def _headed(exported: Exported, plan: Plan) -> Exported:
    """Return the files with what was guessed of the model at the head of each that takes comments, and in those that
    start a run how they are read back."""
    from shardwright.exporters.evaluation import lines_of  # a search asks for limits alone

    guesses = plan.model.guesses
    lines = [f"# Guessed of the model, not known: {' '.join(words.split())}" for words in guesses]
    framework = TARGETS[exported.target].framework or plan.job.framework
    files = {}
    for place, (name, text) in enumerate(exported.files.items()):
        starts = name.endswith(SCRIPT) or (exported.target in LAUNCHING and place == 0)
        read_back = lines_of(plan, name, framework) if starts else ()
        files[name] = _with_comments(text, [*lines, *read_back]) if name.endswith(COMMENTED) else text
    document = {**exported.document, "guesses": list(guesses)} if guesses else exported.document
    return replace(exported, files=files, document=document)


def _with_comments(text: str, lines: list[str]) -> str:
    if not lines:
        return text
    first, newline, rest = text.partition("\n")
    head = [first] if first.startswith("#!") else []
    return "\n".join([*head, *lines, rest if head else first + newline + rest])
