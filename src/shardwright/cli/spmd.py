"""`shardwright spmd`: programs for PyTorch modules on unequal devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from shardwright.cli import options
from shardwright.cli.destination import deliver, require_writable, tell
from shardwright.cli.output import WIPE, progress, write, write_json
from shardwright.commands import CommandGroup, argument, option
from shardwright.errors import bad
from shardwright.records import record
from shardwright.units import format_bytes

if TYPE_CHECKING:
    from shardwright.spmd.document import Synthesized
    from shardwright.spmd.run import Progress, RankMemory
    from shardwright.spmd.task import Task

HELP = """Shard any PyTorch module over unequal GPUs: trace it, find the fastest program, run it.

\b
  shardwright spmd plan train:task --cluster "1x2x4090 + 1x2x3090" --out step.json
  shardwright spmd show step.json
  torchrun --nproc-per-node 4 -m shardwright spmd train step.json train:task --steps 100

`train:task` is a function `task` in train.py that returns a shardwright.spmd.task.Task.
"""
MEBIBYTE = 1 << 20
USUAL = {
    "seed": 0, "accumulate": 1, "clip": 0.0, "schedule": "cosine", "warmup_steps": 0, "decay_steps": 0,
    "decay_from": 0, "final_fraction": 0.1,
}  # fmt: skip

TaskName = Annotated[str, argument(metavar="MODULE:FACTORY", help="A function that returns a Task.")]
File = Annotated[Path, argument(metavar="STEP.json", help="A file of `shardwright spmd plan`.")]
Json = options.AsJson


def plan(
    task: TaskName,
    cluster: Annotated[str, option(metavar="FILE|SHORT", help="A cluster file, or 2x8xA100-SXM-80+….")],
    out: Annotated[Path | None, option("--out", "-o", metavar="FILE", help="Write the step here.")] = None,
    efficiency: Annotated[
        float, option(metavar="PART", help="Part of their peak that GPUs without a profile reach.")
    ] = 0.5,
    profile: Annotated[
        tuple[Path, ...],
        option(
            "--profile",
            "--machine-profile",
            metavar="FILE",
            help="GPUs and links as `shardwright profile` measured them; once a GPU type.",
        ),
    ] = (),
    strategy: Annotated[
        str, option(metavar="NAME", help="any, uneven-fsdp, data-parallel or hap: what the program may be.")
    ] = "any",
    check: Annotated[
        bool, option("--check/--no-check", help="Run a step of the program on this machine, beside eager mode, first.")
    ] = True,
    json: Json = False,
) -> None:
    """Find the fastest program for a module on a cluster.

    Example:

    \b
      shardwright spmd plan train:task --cluster "1x2x4090 + 1x2x3090" --out step.json
    """
    from shardwright.cli.measurements import read_measurements
    from shardwright.spec.read.cluster import load_cluster
    from shardwright.synthesis.baselines import STRATEGIES

    require_writable(out, [], json=json)
    if not 0 < efficiency <= 1:
        raise bad(f"--efficiency {efficiency}", "must be above 0 and at most 1", "0.5 is half of the peak")
    if strategy not in STRATEGIES:
        raise bad(f"--strategy {strategy}", "is no strategy of programs", f"one of {', '.join(STRATEGIES)}")
    where = load_cluster(cluster)
    measured = read_measurements(profile)
    if measured.layers:
        raise bad("--profile", "has layers of a model", "give files of `shardwright profile`, which are of machines")
    _require_torch()
    from shardwright.spmd import synthesize
    from shardwright.spmd.document import to_text
    from shardwright.spmd.task import load_task

    wanted = load_task(task)
    with progress("searching for the fastest program"):
        synthesized = synthesize.plan(
            wanted, where, efficiency=efficiency, strategy=strategy, profiles=measured.machines, check=check, say=_say
        )
    if out is not None:
        deliver(to_text(synthesized), out)
    if json:
        write_json(_document(synthesized))
    else:
        tell(_summary(synthesized), beside=out)


def show(
    step: File,
    every: Annotated[bool, option("--all", help="Repeated blocks each, not the first alone.")] = False,
    json: Json = False,
) -> None:
    """Print a program, operator by operator.

    Example:

    \b
      shardwright spmd show step.json --all
    """
    _require_torch()
    from shardwright.spmd.document import load
    from shardwright.synthesis.program import text

    synthesized = load(step)
    if json:
        write_json(_document(synthesized))
    else:
        write(f"{_summary(synthesized)}\n\n{text(synthesized.graph, synthesized.program, every=every)}")


@record
class StepOptions:
    """How a step updates (by default as before, when resumed)."""

    seed: Annotated[int | None, option(metavar="N", help="Seed of initial weights and of dropout; by default 0.")] = (
        None
    )
    accumulate: Annotated[
        int | None,
        option(
            metavar="N", help="Average the gradients of so many batches in a step, one after the other; by default 1."
        ),
    ] = None
    clip: Annotated[
        float | None, option(metavar="X", help="Clip gradients to this global norm; by default 0: off.")
    ] = None
    schedule: Annotated[
        str | None,
        option(metavar="NAME", help="How the optimizer's learning rates fall: cosine, linear, wsd; by default cosine."),
    ] = None
    warmup_steps: Annotated[
        int | None, option("--warmup", metavar="N", help="Steps until they are reached; by default 0.")
    ] = None
    decay_steps: Annotated[
        int | None, option("--decay", metavar="N", help="Step at which they are lowest; by default 0: never.")
    ] = None
    decay_from: Annotated[
        int | None, option(metavar="N", help="Step at which they begin to fall; wsd: in the last tenth.")
    ] = None
    final_fraction: Annotated[
        float | None, option(metavar="X", help="Part of them that is left then; by default 0.1.")
    ] = None


def train(
    step: File,
    how: StepOptions,
    task: Annotated[
        str, argument(metavar="[MODULE:FACTORY]", help="A function that returns a Task; none with --data.")
    ] = "",
    data: Annotated[
        tuple[str, ...],
        option(metavar="FILE.bin[=W]", help="Token files for a program of `plan --programs`; of weight W each."),
    ] = (),
    steps: Annotated[int, option(metavar="N", help="Train up to this step.")] = 100,
    out: Annotated[
        Path | None,
        option("--out", "-o", metavar="DIR", help="Checkpoints, the last at the end."),
    ] = None,
    resume: Annotated[
        Path | None, option(metavar="DIR", help="Go on from the newest checkpoint in this folder, by any program.")
    ] = None,
    checkpoint_every: Annotated[int, option(metavar="N", help="Steps between checkpoints; 0: at the end.")] = 0,
    keep: Annotated[int, option(metavar="N", help="Keep this many checkpoints; 0: all.")] = 2,
    device: Annotated[str | None, option(metavar="NAME", help="cuda or cpu; GPUs if there are any.")] = None,
    weights: Annotated[Path | None, option(metavar="FILE", help="Start from this safetensors file.")] = None,
    save_weights: Annotated[
        Path | None, option(metavar="FILE", help="Write the unsharded weights as safetensors.")
    ] = None,
    json: Json = False,
) -> None:
    """Train by a program, under torchrun.

    Example:

    \b
      torchrun --nproc-per-node 4 -m shardwright spmd train step.json train:task --steps 100
      torchrun --nproc-per-node 4 -m shardwright spmd train step.json train:task --steps 200 --out run --resume run
    """
    from shardwright.cli.train_input import require_in_range

    stated = asdict(how)
    numbers = {"keep": keep, "steps": steps, "checkpoint_every": checkpoint_every}
    require_in_range({**numbers, **stated, "warmup": how.warmup_steps, "decay": how.decay_steps})
    require_writable(save_weights, [weights], option="--save-weights")
    if out is not None and out.exists() and not out.is_dir():
        raise bad(f"--out {out}", "is a file, not a folder", "name a folder for checkpoints")
    if resume is not None and weights is not None:
        raise bad("--weights", "says where to start, --resume too", "leave one of them out")
    _require_torch()
    from shardwright.spmd import checkpoint, run
    from shardwright.spmd.document import load

    if not run.inside_torchrun():
        raise bad("spmd train", "runs under torchrun", "torchrun --nproc-per-node N -m shardwright spmd train …")
    if out is not None and checkpoint.steps(out) and not (resume and _within(resume, out)):
        raise bad(f"--out {out}", "has checkpoints of another run", f"--resume {out}, or name another folder")
    begun = None if resume is None else checkpoint.opened(resume)
    before = {} if begun is None else begun.settings
    if begun is not None and begun.step >= steps:
        raise bad(f"--steps {steps}", f"{begun.folder} is at step {begun.step} already", "name a later step")
    for name in ("seed", "accumulate"):
        if stated[name] is not None and before.get(name, stated[name]) != stated[name]:
            raise bad(f"--{name} {stated[name]}", f"the checkpoint was written with {before[name]}", "leave it out")
    settings = {**USUAL, **before, **{name: value for name, value in stated.items() if value is not None}}
    synthesized, losses = load(step), list[float]()
    training, fingerprint = _task(synthesized, task, data, settings)
    if fingerprint is not None and before.get("data", fingerprint) != fingerprint:
        message = "are other tokens, or in other parts, than those that the checkpoint was written with"
        raise bad(f"--data {' '.join(data)}", message, "give the same files and weights")
    settings["data"] = fingerprint

    def report(now: Progress) -> None:
        losses.append(now.loss)
        _say(f"step {now.step}/{steps}  loss {now.loss:.4f}  {now.seconds:.3f} s")

    memory = run.train(
        synthesized,
        training,
        steps=steps,
        device=device,
        seed=settings["seed"],
        course=run.Course(accumulate=settings["accumulate"], clip=settings["clip"], rate=_rate(settings, stated)),
        checkpoints=run.Checkpoints(out=out, every=checkpoint_every, keep=keep, resume=resume, settings=settings),
        weights=weights,
        save_weights=save_weights,
        report=report,
    )
    if int(os.environ["RANK"]):
        return
    if json:
        write_json({"losses": losses, "ranks": [asdict(rank_memory) for rank_memory in memory]})
    else:
        write("\n".join(_memory_words(rank, rank_memory) for rank, rank_memory in enumerate(memory)))


def export(
    step: File,
    to: Annotated[
        str, option(metavar="NAME", help="dtensor: PyTorch's placements, of even programs; vescale: ragged shards.")
    ],
    out: Annotated[Path | None, option("--out", "-o", metavar="FILE.py", help="Write the placements here.")] = None,
) -> None:
    """Write how a program stores parameters, as a Python file of DTensor placements.

    Example:

    \b
      shardwright spmd export step.json --to vescale -o placements.py
    """
    require_writable(out, [step])
    _require_torch()
    from shardwright.spmd.document import load, placements_text

    words = placements_text(load(step), to)
    if out is None:
        write(words.rstrip("\n"))
    else:
        deliver(words, out)


def _task(
    synthesized: Synthesized, name: str, data: tuple[str, ...], settings: Mapping[str, Any]
) -> tuple[Task, str | None]:
    """Return the task of a name, or that of a graph that ships on token files, with the fingerprint of these."""
    from shardwright.spmd.task import batch_shape, described_task, load_task

    if bool(name) == bool(data):
        raise bad("spmd train", "takes a task or --data", "MODULE:FACTORY, or --data corpus.bin for `plan --programs`")
    if name:
        return load_task(name), None
    from shardwright.cli.train_input import sources_of
    from shardwright.runtime.storage.mixture import open_mixture

    rows, positions, vocabulary = batch_shape(synthesized.graph)
    batch = rows * settings["accumulate"]
    samples = open_mixture(sources_of(data), positions, settings["seed"], vocabulary, batch)
    return described_task(synthesized, samples.rows), samples.fingerprint


def _within(resume: Path, out: Path) -> bool:
    """Return whether a run goes on in the folder that it comes from, or that has the step it comes from."""
    return out.resolve() in (resume.resolve(), resume.resolve().parent)


def _rate(settings: Mapping[str, Any], stated: Mapping[str, Any]) -> Callable[[int], float]:
    """Return what the learning rates of a step are multiplied with. Raises SpecError for options that say nothing."""
    from shardwright.cli.train_input import with_falling_rate
    from shardwright.runtime.state.recipe import SCHEDULES, Recipe

    if settings["schedule"] not in SCHEDULES:
        raise bad(f"--schedule {settings['schedule']}", "is not known", f"one of {', '.join(SCHEDULES)}")
    names = ("schedule", "warmup_steps", "decay_steps", "decay_from", "final_fraction")
    given = {name.removesuffix("_steps") for name, value in stated.items() if value is not None}
    return with_falling_rate(Recipe(learning_rate=1.0, **{name: settings[name] for name in names}), given).rate


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise bad("spmd", "needs PyTorch", "pip install 'shardwright[runtime]'")


def _say(words: str) -> None:
    print(f"{WIPE}{words}" if sys.stderr.isatty() else words, file=sys.stderr, flush=True)


def _document(synthesized: Synthesized) -> dict[str, Any]:
    program = synthesized.program
    return {
        "ranks": program.ranks,
        "seconds": program.seconds,
        "bound_seconds": program.bound_seconds,
        "operators": len(synthesized.graph.nodes),
        "communications": len(program.communications),
        "shares": {name: list(row) for name, row in program.shares.items()},
        "notes": dict(program.notes),
    }


def _summary(synthesized: Synthesized) -> str:
    """Return what a program does in a few lines: time, bound, shares of each rank, what it sends."""
    program = synthesized.program
    sent: dict[str, int] = {}
    for communication in program.communications:
        if communication.method != "slice":
            sent[communication.method] = sent.get(communication.method, 0) + 1
    gap = 1 - program.bound_seconds / program.seconds if program.seconds else 0.0
    words = ", ".join(f"{count} × {method.replace('_', ' ')}" for method, count in sorted(sent.items()))
    lines = [
        f"{program.seconds * 1e3:.4g} ms a step, predicted; at most {gap:.1%} above the optimum at these shares",
        f"sends {words or 'nothing'}",
        f"{program.notes.get('replicated_flops', 0.0):.2%} of the FLOPs run on every rank alike",
    ]
    names = list(program.notes.get("devices", ())) or [""] * program.ranks
    held = program.notes.get("memory_bytes")
    for rank, name in enumerate(names):
        parts = [f"{ratio} {row[rank]:.1%}" for ratio, row in program.shares.items()] or ["the whole step"]
        parts += [f"{format_bytes(held[rank])} of tensors"] if held else []
        lines.append(f"rank {rank} {name}: {', '.join(parts)}")
    checked = program.notes.get("checked")
    why = program.notes.get("unchecked_because", "its file says nothing")
    lines.append(f"one step of {checked} equals eager mode" if checked else f"not checked against eager mode: {why}")
    return "\n".join([*lines, *(str(word) for word in program.notes.get("warnings", ()))])


def _memory_words(rank: int, memory: RankMemory) -> str:
    peak = f", at most {memory.peak_bytes / MEBIBYTE:.1f} MiB on its GPU" if memory.peak_bytes else ""
    return f"rank {rank}: {memory.parameter_bytes / MEBIBYTE:.2f} MiB of parameters{peak}"


app = CommandGroup(
    "spmd",
    {
        "plan": ("shardwright.cli.spmd:plan", "Find the fastest program for a module on a cluster."),
        "show": ("shardwright.cli.spmd:show", "Print a program, operator by operator."),
        "train": ("shardwright.cli.spmd:train", "Train by a program, under torchrun."),
        "export": ("shardwright.cli.spmd:export", "Write a program's placements for other trainers."),
    },
    help=HELP,
)
