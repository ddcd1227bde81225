"""`shardwright calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardwright.cli import options
from shardwright.cli.destination import deliver, require_writable
from shardwright.cli.inputs import read_launch, require_no_launch
from shardwright.cli.measurements import Profiles, read_measurements
from shardwright.cli.output import note, progress, terminal_width, write, write_json
from shardwright.commands import argument, option
from shardwright.errors import bad, reject
from shardwright.records import record

if TYPE_CHECKING:
    from shardwright.cli.options import LaunchOptions
    from shardwright.cost.calibrate import Measured
    from shardwright.cost.compute.efficiency import Efficiency
    from shardwright.plans.plan import Plan
    from shardwright.runs.run import RunSetting
    from shardwright.runs.state import GoodState
    from shardwright.spec.read.machine_profile import MachineProfile

PLAN = "plan.json"  # beside metrics.csv, in the folder of a run of `shardwright train`


def calibrate(
    runs: Annotated[
        tuple[str, ...],
        argument(
            metavar="RUNS…",
            help="Logs of trainers, event files, MLPerf result logs, CSV with a row a step, folders of `train`; or one "
            "CSV with a run a row, in the columns of docs/how-to-validate.md.",
        ),
    ],
    out: Annotated[
        Path, option("--out", "-o", metavar="FILE", help="Write the calibration to this file, e.g. site.json.")
    ],
    launched: options.LaunchOptions,
    plan: Annotated[
        tuple[Path, ...],
        option(metavar="PLAN.json", help="The plan that a run ran: one for each, in order, or one for all."),
    ] = (),
    launch: Annotated[
        tuple[Path, ...],
        option(metavar="FILE", help="The launch script or configuration that a run ran, in place of a plan file."),
    ] = (),
    profile: Profiles = (),
    anonymous: Annotated[
        bool, option("--anonymous", help="Leave the names of models out, to share the calibration.")
    ] = False,
    json: options.AsJson = False,
) -> None:
    """Calibrate on your own runs: predictions follow what your machines and network do, and say how sure they are now.
    One run is enough to begin with; at most 50 count.

    A run is its log and the plan or launch that it ran. Warm-up, evaluations, checkpoints, stalls and stragglers are
    left out. Give the file to plan, evaluate, shop and serve: --calibration site.json.

    Examples:

    \b
      shardwright calibrate train.log --launch run.sh --cluster 4x8xH100-SXM -o site.json
      shardwright calibrate a.log b.log --plan a.json --plan b.json -o site.json
      shardwright calibrate runs.csv -o site.json --anonymous
      shardwright calibrate run/ -o site.json     # a folder that `shardwright train --out` left
    """
    from shardwright.cost.calibrate import calibrate as calibration_of
    from shardwright.cost.site.file import dumps
    from shardwright.plans.document import load_plan
    from shardwright.reports.text.site import calibration_document, calibration_text

    require_writable(out, [*runs, *plan, *launch, *profile], json=json)
    if plan and launch:
        raise bad("--launch", "cannot stand beside --plan", "give the one that the runs ran")
    if not launch:
        require_no_launch(launched)
    plans = [load_plan(path) for path in plan]
    plans += [_launched(path, launched) for path in launch]
    measurements = read_measurements(profile)
    if measurements.layers is not None:
        raise bad("--profile", "has layers of a model, which say what a run of it takes", "give a machine profile")
    with progress("reading runs"):
        read = _read(runs, plans)
        efficiency = _efficiency(measurements.machines, read.measured)
        profiles = [machine.gpu.kind for machine in measurements.machines]
        calibration = calibration_of(read.measured, efficiency, profiles=profiles, anonymous=anonymous)
    for words in read.notes:
        note(words)
    deliver(dumps(calibration), out)
    if json:
        write_json(calibration_document(calibration, read.states, out))
    else:
        write(calibration_text(calibration, read.states, out, terminal_width()))


@record
class Read:
    """What the files of runs hold: plans with what they took, good states by name, and what to know of the reading."""

    measured: tuple[Measured, ...]
    states: dict[str, GoodState]
    notes: tuple[str, ...]


def _read(runs: Sequence[str], plans: Sequence[Plan]) -> Read:
    from shardwright.cost.calibrate import Measured
    from shardwright.runs.read import read_run
    from shardwright.runs.state import good_state

    tables = [name for name in runs if _is_table_of_runs(Path(name))]
    if tables:
        return _read_tables(runs, tables, plans)
    kept = [_own_plan(Path(name)) for name in runs]
    if len(plans) not in (0, 1, len(runs)):
        raise bad(
            "--plan", f"there are {len(plans)} for {len(runs)} runs", "give one for each run, in order, or one for all"
        )
    if plans and all(kept):
        raise bad("--plan", "each run has its own plan in its folder", "leave it out, as --launch")
    measured, states, notes = [], {}, []
    for place, name in enumerate(runs):
        ran = kept[place] or (plans[place] if len(plans) > 1 else plans[0] if plans else None)
        if ran is None:
            raise bad(
                name,
                "does not say what it ran",
                "give its plan file (--plan) or its launch (--launch run.sh --cluster …)",
            )
        job = ran.job
        run = read_run(name, global_batch=job.global_batch, seq_len=job.seq_len, sequences=job.sequences, gpus=ran.gpus)
        _require_same(run.setting, ran, name)
        state = good_state(run)
        states[name] = state
        notes += [f"{name}: {words}" for words in run.notes]
        measured.append(
            Measured(plan=ran, seconds=state.seconds, name=name, spread=state.spread, bad_share=state.bad_share)
        )
    return Read(measured=tuple(measured), states=states, notes=tuple(notes))


def _read_tables(runs: Sequence[str], tables: Sequence[str], plans: Sequence[Plan]) -> Read:
    from shardwright.cost.learned import default_efficiency
    from shardwright.validation.outcome import measured_runs
    from shardwright.validation.runs import read_runs

    if len(tables) < len(runs) or plans:
        raise bad(
            tables[0],
            "is a table of runs, and each row has its setting",
            "give tables of runs alone, without --plan or --launch",
        )
    measured: list[Measured] = []
    for name in tables:
        measured += measured_runs(read_runs(Path(name)), default_efficiency(), name)
    return Read(measured=tuple(measured), states={}, notes=())


def _is_table_of_runs(path: Path) -> bool:
    """Whether a file is a CSV with a run a row, and not a row a step."""
    from shardwright.validation.runs import NEEDED

    if path.suffix.casefold() != ".csv" or not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        names = {name.strip() for name in file.readline().split(",")}
    return names >= set(NEEDED)


def _own_plan(path: Path) -> Plan | None:
    """Return the plan of a run of `shardwright train`, from its folder or its metrics; None for other files."""
    from shardwright.plans.document import load_plan
    from shardwright.runs.read import METRICS

    folder = path if path.is_dir() else path.parent if path.name == METRICS else None
    return load_plan(folder / PLAN) if folder is not None and (folder / PLAN).is_file() else None


def _require_same(setting: RunSetting, plan: Plan, name: str) -> None:
    """Raise SpecError where a log says another setting than its plan."""
    planned = {
        "gpus": plan.gpus,
        "global_batch": plan.job.global_batch,
        "seq_len": plan.job.seq_len,
        "tp": max(stage.tensor_parallel for stage in plan.stages),
        "pp": max(len(replica.stages) for replica in plan.replicas),
    }
    for key, value in planned.items():
        said, line = getattr(setting, key), setting.lines.get(key)
        if line and said != value:
            message = f"says {key.replace('_', ' ')} {said}, its plan {value}"
            raise bad(f"{name}, line {line}", message, "give the plan or launch that this run ran")


def _launched(path: Path, options: LaunchOptions) -> Plan:
    """Return the plan of a launch. Raises SpecError for one that is not legal."""
    from shardwright.plans.check import check

    if options.cluster is None:
        raise bad("--cluster", "is missing", "say on which machines it ran: --cluster 4x8xH100-SXM")
    launched = read_launch(path, (), options).plan
    reject(check(launched))
    return launched


def _efficiency(machines: Sequence[MachineProfile], measured: Sequence[Measured]) -> Efficiency:
    """Return the model of time without the site, with the machine profiles that were given."""
    from shardwright.cost.learned import default_efficiency
    from shardwright.cost.measured.machine import profiled

    base: Efficiency = default_efficiency()
    return profiled(base, machines, measured[0].plan.cluster) if machines and measured else base
