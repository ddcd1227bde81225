"""`shardwright rehearse`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from click.exceptions import Exit

from shardwright.cli import options
from shardwright.cli.destination import deliver, require_writable
from shardwright.cli.output import complain, json_text, note, progress, write
from shardwright.commands import option

NO_ROOM = 3


def rehearse(
    plan: options.PlanFile,
    trainer: Annotated[
        str | None,
        option(
            "--in",
            "--trainer",
            metavar="TRAINER",
            help="train, fsdp, megatron or torchtitan (experimental); by default what the plan is priced for.",
        ),
    ] = None,
    rank: Annotated[
        tuple[int, ...],
        option("--rank", metavar="N", help="Rehearse this rank; may be repeated. By default one of each kind."),
    ] = (),
    python: Annotated[
        str | None,
        option(metavar="PYTHON", help="Interpreter of the environment that has the trainer, if not this one."),
    ] = None,
    time_limit: Annotated[float, option(metavar="SECONDS", help="End a rank that takes longer.")] = 900.0,
    memory_limit: Annotated[float, option(metavar="GB", help="End a rank that takes more host memory.")] = 8.0,
    out: Annotated[
        Path | None, option("--out", "-o", metavar="FILE", help="Write the JSON document to this file.")
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Run one step of a plan in its trainer's own code, at full size, without GPUs, and say whether it fits.

    This EXECUTES the trainer's code: on fake tensors, in a process of its own with limits of time and memory. All other
    commands only read. It needs PyTorch 2.13, the trainer, and once a C++ compiler.

    Examples:

    \b
      shardwright rehearse plan.json
      shardwright rehearse plan.json --in fsdp --rank 0
      shardwright rehearse plan.json --in megatron --python ~/megatron/bin/python --json

    Exit codes: 0 the step ran (also where it does not fit), 2 something is missing or the code ends in an error, 3 a
    limit of time or memory is too low.
    """
    from shardwright.errors import Problem
    from shardwright.plans.document import load_plan
    from shardwright.rehearsal.document import to_document
    from shardwright.rehearsal.rehearse import NoRoomError
    from shardwright.rehearsal.rehearse import rehearse as run
    from shardwright.rehearsal.text import rehearsal_text
    from shardwright.reports.words import flagged

    require_writable(out, [plan], json=json)
    chosen = load_plan(plan)
    note(f"executing the trainer's code in a process of its own ({python or 'this interpreter'})")
    try:
        with progress("rehearsing"):
            result = run(
                chosen, trainer=trainer, rank=rank, python=python, time_limit=time_limit,
                memory_limit=memory_limit,
            )  # fmt: skip
    except NoRoomError as error:
        complain(
            (Problem("rehearsal", flagged(str(error)), "give it more, or rehearse fewer layers or micro-batches"),)
        )
        raise Exit(NO_ROOM) from None
    document = to_document(result)
    if out is not None:
        deliver(json_text(document), out)
    if json:
        write(json_text(document))
    elif out is None or str(out) != "-":
        write(rehearsal_text(result))
