"""`shardwright export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardwright.cli import completion, options
from shardwright.cli.destination import deliver, deliver_all, require_writable
from shardwright.cli.output import note, write, write_json
from shardwright.commands import option

if TYPE_CHECKING:
    from shardwright.plans.plan import Plan

TARGET = "One of the targets below."


def export(
    plan: options.PlanFile,
    to: Annotated[str, option(metavar="TARGET", help=TARGET, complete=completion.targets)],
    launcher: Annotated[str, option(metavar="NAME", help="torchrun or slurm.")] = "torchrun",
    out: Annotated[
        Path | None,
        option(
            "--out", "-o", metavar="FILE", help="Write to this file, or to this folder where there are several files."
        ),
    ] = None,
    nearest: Annotated[
        bool,
        option("--nearest", help="Where the target cannot run the plan, write the nearest one that it can run."),
    ] = False,
    json: Annotated[bool, option("--json", help="Print arguments and script as one JSON document.")] = False,
) -> None:
    """Write a plan as the configuration of a trainer. What the trainer cannot express is refused by name.

    Targets:

    \b
      megatron      Megatron-LM core_v0.19: a launch script
      bridge        Megatron-Bridge 0.6: a recipe in Python
      torchtitan    torchtitan 0.3: a configuration in Python
      accelerate    Hugging Face Accelerate 1.15 with FSDP2
      deepspeed     DeepSpeed 0.19: ZeRO and AutoTP
      skypilot      SkyPilot 0.14: a task or job group that starts Megatron-LM or shardwright train
      kubernetes    a JobSet that starts the same
      perfetto      a trace of the predicted step, for https://ui.perfetto.dev

    Examples:

    \b
      shardwright export plan.json --to megatron -o run.sh
      shardwright export plan.json --to megatron --launcher slurm -o job.sbatch
      shardwright export plan.json --to megatron --json
      shardwright export plan.json --to deepspeed --nearest -o ds/   # where DeepSpeed cannot run it, one that it can
      shardwright export plan.json --to skypilot -o launch/          # task.yaml, run.sh
      shardwright export plan.json --to kubernetes -o jobset.yaml
      shardwright export plan.json --to perfetto -o trace.json       # open it at https://ui.perfetto.dev
    """
    from shardwright.errors import Problem, SpecError
    from shardwright.exporters.nearest import nearest_plan
    from shardwright.plans.document import load_plan
    from shardwright.reports.text.explain import nearest_words
    from shardwright.trainers.runs import export as files_for

    chosen = load_plan(plan)
    try:
        exported = files_for(chosen, to, launcher=launcher)
    except SpecError as error:
        other = nearest_plan(chosen, to)
        if other is None:
            raise
        if not nearest:
            hint = f"`export --to {to} --nearest` writes it"
            raise SpecError(*error.problems, Problem(f"--to {to}", nearest_words(chosen, other), hint)) from None
        exported = files_for(other, to, launcher=launcher)
        note(f"{to} cannot run {plan}; {nearest_words(chosen, other)}")
        chosen = other
    _note_framework(chosen, to)
    if out is not None and len(exported.files) > 1:
        deliver_all(exported.files, out)
    elif out is not None:
        require_writable(out, [plan], json=json)
        deliver(exported.main, out)
    if json:
        write_json({"target": exported.target, "version": exported.version, **exported.document})
    elif out is None:
        write(exported.main)
        if others := list(exported.files)[1:]:
            note(f"{', '.join(others)}: write these too with -o FOLDER")


def _note_framework(plan: Plan, to: str) -> None:
    """Say what a plan takes under the framework of a target, where it is priced for another one."""
    from shardwright.search.planner import predict
    from shardwright.trainers.runs import under
    from shardwright.units import format_seconds

    other = under(plan, to)
    if other is None:
        return
    costed = (predict(other).prediction, plan.prediction)
    took = ", not ".join(format_seconds(prediction.iteration_seconds) for prediction in costed if prediction)
    name = other.job.framework
    best = f"`plan --framework {name}` finds its best"
    note(f"priced for {plan.job.framework}: by {name} an iteration takes {took}; {best}")
