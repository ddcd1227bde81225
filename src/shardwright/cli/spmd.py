"""`shardwright spmd`: programs for PyTorch modules on unequal devices."""

from __future__ import annotations

import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from shardwright.cli import options
from shardwright.cli.destination import deliver, require_writable, tell
from shardwright.cli.output import WIPE, progress, write, write_json
from shardwright.commands import CommandGroup, argument, option
from shardwright.errors import bad
from shardwright.units import format_bytes

if TYPE_CHECKING:
    from shardwright.spmd.document import Synthesized
    from shardwright.spmd.run import Progress, RankMemory

HELP = """Shard any PyTorch module over unequal GPUs: trace it, find the fastest program, run it.

\b
  shardwright spmd plan train:task --cluster "1x2x4090 + 1x2x3090" --out step.json
  shardwright spmd show step.json
  torchrun --nproc-per-node 4 -m shardwright spmd train step.json train:task --steps 100

`train:task` is a function `task` in train.py that returns a shardwright.spmd.task.Task.
"""
MEBIBYTE = 1 << 20

TaskName = Annotated[str, argument(metavar="MODULE:FACTORY", help="A function that returns a Task.")]
File = Annotated[Path, argument(metavar="STEP.json", help="A file of `shardwright spmd plan`.")]
Json = options.AsJson


def plan(
    task: TaskName,
    cluster: Annotated[str, option(metavar="FILE|SHORT", help="A cluster file, or 2x8xA100-SXM-80+….")],
    out: Annotated[Path | None, option("--out", "-o", metavar="FILE", help="Write the step here.")] = None,
    efficiency: Annotated[
        float, option(metavar="PART", help="Of their peak, what GPUs without a profile reach.")
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
        raise bad(f"--efficiency {efficiency}", "is not above 0 and at most 1", "0.5 is half of the peak")
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
        found = synthesize.plan(
            wanted, where, efficiency=efficiency, strategy=strategy, profiles=measured.machines, check=check, say=_say
        )
    if out is not None:
        deliver(to_text(found), out)
    if json:
        write_json(_document(found))
    else:
        tell(_summary(found), beside=out)


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

    found = load(step)
    if json:
        write_json(_document(found))
    else:
        write(f"{_summary(found)}\n\n{text(found.graph, found.program, every=every)}")


def train(
    step: File,
    task: TaskName,
    steps: Annotated[int, option(metavar="N", help="Train this many steps.")] = 100,
    accumulate: Annotated[
        int, option(metavar="N", help="Batches of a step, one after the other; their gradients are averaged.")
    ] = 1,
    device: Annotated[str | None, option(metavar="NAME", help="cuda or cpu; GPUs if there are any.")] = None,
    seed: Annotated[int, option(metavar="N", help="Of initial weights and of dropout.")] = 0,
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
    """
    if steps < 1:
        raise bad(f"--steps {steps}", "is below 1", "train at least one step")
    if accumulate < 1:
        raise bad(f"--accumulate {accumulate}", "is below 1", "1 is a batch a step")
    require_writable(save_weights, [weights], option="--save-weights")
    _require_torch()
    from shardwright.spmd import run
    from shardwright.spmd.document import load
    from shardwright.spmd.task import load_task

    if not run.inside_torchrun():
        raise bad("spmd train", "runs under torchrun", "torchrun --nproc-per-node N -m shardwright spmd train …")
    losses: list[float] = []

    def report(now: Progress) -> None:
        losses.append(now.loss)
        _say(f"step {now.step}/{steps}  loss {now.loss:.4f}  {now.seconds:.3f} s")

    memory = run.train(
        load(step),
        load_task(task),
        steps=steps,
        device=device,
        seed=seed,
        accumulate=accumulate,
        weights=weights,
        save_weights=save_weights,
        report=report,
    )
    if losses and json:
        write_json({"losses": losses, "ranks": [asdict(one) for one in memory]})
    elif losses:
        write("\n".join(_memory_words(rank, one) for rank, one in enumerate(memory)))


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise bad("spmd", "needs PyTorch", "pip install 'shardwright[runtime]'")


def _say(words: str) -> None:
    print(f"{WIPE}{words}" if sys.stderr.isatty() else words, file=sys.stderr, flush=True)


def _document(found: Synthesized) -> dict[str, Any]:
    program = found.program
    return {
        "ranks": program.ranks,
        "seconds": program.seconds,
        "bound_seconds": program.bound_seconds,
        "operators": len(found.graph.nodes),
        "communications": len(program.communications),
        "shares": {name: list(row) for name, row in program.shares.items()},
        "notes": dict(program.notes),
    }


def _summary(found: Synthesized) -> str:
    """Return what a program does in a few lines: time, bound, shares of each rank, what it sends."""
    program = found.program
    sent: dict[str, int] = {}
    for one in program.communications:
        if one.method != "slice":
            sent[one.method] = sent.get(one.method, 0) + 1
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
        parts = ", ".join(f"{ratio} {row[rank]:.1%}" for ratio, row in program.shares.items())
        memory = f", {format_bytes(held[rank])} of tensors" if held else ""
        lines.append(f"rank {rank} {name}: {parts}{memory}")
    checked = program.notes.get("checked")
    why = program.notes.get("unchecked_because", "its file says nothing")
    lines.append(f"one step of {checked} equals eager mode" if checked else f"not checked against eager mode: {why}")
    return "\n".join([*lines, *(str(word) for word in program.notes.get("warnings", ()))])


def _memory_words(rank: int, one: RankMemory) -> str:
    peak = f", at most {one.peak_bytes / MEBIBYTE:.1f} MiB on its GPU" if one.peak_bytes else ""
    return f"rank {rank}: {one.parameter_bytes / MEBIBYTE:.2f} MiB of parameters{peak}"


app = CommandGroup(
    "spmd",
    {
        "plan": ("shardwright.cli.spmd:plan", "Find the fastest program for a module on a cluster."),
        "show": ("shardwright.cli.spmd:show", "Print a program, operator by operator."),
        "train": ("shardwright.cli.spmd:train", "Train by a program, under torchrun."),
    },
    help=HELP,
)
