"""`shardwright diagnose`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardwright.cli import options
from shardwright.cli.destination import deliver, require_writable
from shardwright.cli.evaluate import seconds_of
from shardwright.cli.inputs import read_launch, require_no_launch
from shardwright.cli.measurements import Calibration, Profiles, efficiency_of, read_measurements
from shardwright.cli.output import json_text, progress, terminal_width
from shardwright.commands import argument, option
from shardwright.errors import bad

if TYPE_CHECKING:
    from shardwright.plans.plan import Plan
    from shardwright.plans.ranking import Origin


def diagnose(
    launched: options.LaunchOptions,
    sources: Annotated[
        tuple[Path, ...],
        argument(
            metavar="[LOG|TRACE|SNAPSHOT|TEXT|FOLDER…]",
            help="What was recorded: a log, traces of one rank or several (Kineto, Nsight Systems as sqlite, `train`), "
            "a snapshot of memory, a text with a message of full memory, or the folder of a run of `train`.",
        ),
    ] = (),
    launch: Annotated[
        Path | None,
        option(metavar="FILE", help="The launch script or configuration of the run. Nothing of it is executed."),
    ] = None,
    plan: Annotated[Path | None, option(metavar="FILE", help="The plan of the run, instead of its launch.")] = None,
    measured: Annotated[
        str | None, option(metavar="SECONDS", help="Measured time of a step, e.g. 15.6s, if no log has it.")
    ] = None,
    data: Annotated[
        Path | None, option(metavar="FILE.bin", help="The token file of the run, to count padding.")
    ] = None,
    best: Annotated[bool, option(help="Also search the best plan for the same machines.")] = True,
    profile: Profiles = (),
    calibration: Calibration = None,
    out: options.Out = None,
    json: options.AsJson = False,
) -> None:
    """Say why a training run is slow, or why it is out of memory: what a step should take beside what it takes, term by
    term, the causes with the seconds that each costs, the evidence, and the flag that mends it.

    A step time alone is enough to begin with. The answer says what it cannot tell, and the command that records
    what would tell.

    Examples:

    \b
      shardwright diagnose --measured 15.6s --launch run.sh --cluster 4x8xH100-SXM
      shardwright diagnose train.log --launch run.sh --cluster 4x8xH100-SXM
      shardwright diagnose train.log rank0.json.gz rank8.json.gz --plan plan.json
      shardwright diagnose error.txt --launch run.sh --cluster 1x8xA100-SXM-80
      shardwright diagnose runs/first --json

    Exit codes: 0 there is a diagnosis (also where all is as expected), 2 bad input, or log and launch contradict each
    other.
    """
    from shardwright.diagnosis.diagnose import diagnose as run
    from shardwright.diagnosis.report import diagnosis_document, diagnosis_text

    require_writable(out, [*sources, launch, plan, data, *profile, calibration], json=json)
    mine, origin = _plan_of(sources, launch, plan, launched)
    efficiency = efficiency_of(read_measurements(profile, calibration), mine.model, mine.cluster, mine.job)
    with progress("reading, and looking for causes"):
        result = run(mine, sources, step_seconds=seconds_of(measured), data=data, efficiency=efficiency, best=best)
    answer = json_text(diagnosis_document(result, origin)) if json else diagnosis_text(result, origin, terminal_width())
    deliver(answer, out)


def _plan_of(
    sources: tuple[Path, ...], launch: Path | None, plan: Path | None, launched: options.LaunchOptions
) -> tuple[Plan, Origin]:
    """Return the plan of a run, and how it was read: from its launch, its plan file, or the plan in the folder that
    `train` left."""
    from shardwright.plans.document import load_plan
    from shardwright.plans.ranking import Origin
    from shardwright.traces.read import PLAN

    if launch is not None and plan is not None:
        raise bad("--plan", "says what ran, and so does --launch", "leave one of them out")
    if launch is not None:
        read = read_launch(launch, (), launched)
        return read.plan, Origin(read.notes, read.uncounted)
    require_no_launch(launched)
    folders = [source for source in sources if (source / PLAN).is_file()]
    if plan is None and not folders:
        message = "needs what ran: --launch FILE --cluster CLUSTER, or --plan FILE"
        raise bad("diagnose", message, "see `shardwright diagnose --help`")
    return load_plan(plan if plan is not None else folders[0] / PLAN), Origin()
