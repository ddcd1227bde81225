"""`shardwright evaluate`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from click.exceptions import Exit

from shardwright.cli import options
from shardwright.cli.destination import deliver, require_writable
from shardwright.cli.inputs import part, read_launch, require_no_launch, rules_of
from shardwright.cli.measurements import Calibration, Profiles, efficiency_of, read_measurements
from shardwright.cli.output import json_text, progress, terminal_width, write
from shardwright.commands import argument, option
from shardwright.errors import Problem, SpecError, bad, merged
from shardwright.records import record

if TYPE_CHECKING:
    from shardwright.cost.compute.efficiency import Efficiency
    from shardwright.plans.plan import Plan
    from shardwright.plans.ranking import Evaluation, Origin
    from shardwright.reports.text.evaluation import Rung
    from shardwright.search.rules.rules import Rule
    from shardwright.search.space.axes import Space

LAUNCHES = (".sh", ".bash", ".sbatch", ".slurm", ".py", ".toml", ".yaml", ".yml", ".txt")  # no plan file ends so


def evaluate(
    launched: options.LaunchOptions,
    words: Annotated[
        tuple[str, ...],
        argument(
            metavar="[PLAN.json | ARGUMENTS…]",
            help="A plan file, as `plan --out` writes it; with --launch the arguments of the script.",
        ),
    ] = (),
    launch: Annotated[
        Path | None,
        option(
            "--launch",
            "--megatron-args",
            metavar="FILE",
            help="A launch script or a trainer's configuration, instead of a plan file. Nothing of it is executed.",
        ),
    ] = None,
    profile: Profiles = (),
    calibration: Calibration = None,
    settings: options.Pins = (),
    rules: Annotated[
        Path | None, option(metavar="FILE", help="Rules that better plans must keep (docs/rules.md).")
    ] = None,
    indifference: options.Indifference = "1%",
    measured: Annotated[
        str | None,
        option(metavar="SECONDS", help="Measured time of your step, e.g. 15.6s; scales the times of the ladder."),
    ] = None,
    out: Annotated[
        Path | None,
        option("--out", "-o", metavar="FILE", help="Write the best plan to this file, e.g. best.json."),
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Predict time, memory and money of your own plan, and explain the difference to the best, term by term.

    Examples:

    \b
      shardwright evaluate plan.json
      shardwright evaluate --launch run.sh --cluster 32x8xA100-SXM-80
      shardwright evaluate --launch run.sh --cluster cluster.yaml --env TP=8 -- dsw 8B 1
      shardwright evaluate --launch run.sh --cluster cluster.yaml --model llama-2-70b --json
    """
    from shardwright.plans.abilities import framework_problems
    from shardwright.plans.check import check
    from shardwright.plans.document import dumps, load_plan
    from shardwright.plans.ranking import Origin
    from shardwright.search.objective import MOST_INDIFFERENCE

    if launch is not None:
        read = read_launch(launch, words, launched)
        mine, notes, uncounted = read.plan, read.notes, read.uncounted
    else:
        if not words or len(words) > 1:
            raise bad("evaluate", "needs a plan file or --launch FILE", "see `shardwright evaluate --help`")
        if Path(words[0]).suffix in LAUNCHES:
            hint = f"a launch is read with --launch {words[0]} --cluster CLUSTER"
            raise bad(words[0], "is not a plan file", hint)
        require_no_launch(launched)
        mine, notes, uncounted = load_plan(Path(words[0])), (), ()
    require_writable(out, [launch, rules, *profile, calibration], json=json)
    as_good = part(indifference, "--indifference", most=MOST_INDIFFERENCE)
    wanted = Requirements(settings=settings, rules=rules, indifference=as_good, measured=seconds_of(measured))
    measurements = read_measurements(profile, calibration)
    problems = check(mine) or (() if measurements.layers else tuple(framework_problems(mine)))  # measured layers ran
    efficiency = efficiency_of(measurements, mine.model, mine.cluster, mine.job)
    try:
        with warnings.catch_warnings():
            if problems:
                warnings.simplefilter("ignore")
            result, answer = _answer(mine, problems, Origin(notes, uncounted), efficiency, wanted, json=json)
            if out is not None and result.best.plans:
                deliver(dumps(result.best.best), out)
    except Exception:
        if not problems:
            raise
        # The cost model takes legality for granted: it may fail in any way on a plan that is illegal.
        raise SpecError(*merged(problems)) from None
    write(answer)
    if problems:
        raise Exit(2)


@record(kw_only=False)
class Requirements:
    """What a better plan must keep, which plans are as good, and the user's own seconds of a step."""

    settings: tuple[str, ...]
    rules: Path | None
    indifference: float
    measured: float | None


def seconds_of(text: str | None) -> float | None:
    """Return the seconds of `15.6s` or `15.6`. Raises SpecError for anything else."""
    try:
        value = None if text is None else float(text.removesuffix("s"))
    except ValueError:
        value = 0.0
    if value is not None and not 0.0 < value < float("inf"):
        raise bad(f"--measured {text}", "is not a number of seconds", "write --measured 15.6s")
    return value


def _answer(
    mine: Plan,
    problems: tuple[Problem, ...],
    origin: Origin,
    efficiency: Efficiency | None,
    wanted: Requirements,
    *,
    json: bool,
) -> tuple[Evaluation, str]:
    from shardwright.cost.site.calibrated import anchored
    from shardwright.search.space.axes import parse_pins
    from shardwright.trainers.plan import evaluate as assess

    space = parse_pins(wanted.settings)
    limits = rules_of(wanted.rules, mine.cluster)
    with progress(f"searching for the best plan of {mine.model.name} on {mine.cluster.gpus} GPUs"):
        result = assess(mine, efficiency=efficiency, space=space, rules=limits, indifference=wanted.indifference)
        rungs = () if problems else _rungs(result.plan, anchored(efficiency, result.plan), space, limits)
    if json:
        from shardwright.reports.documents.ranking import evaluation_document

        return result, json_text(evaluation_document(result, problems, origin, rungs, wanted.measured))
    from shardwright.reports.text.evaluation import evaluation_text

    return result, evaluation_text(result, problems, origin, terminal_width(), rungs, wanted.measured)


def _rungs(mine: Plan, efficiency: Efficiency | None, space: Space, limits: tuple[Rule, ...]) -> tuple[Rung, ...]:
    """Return the steps to better plans that the trainer of yours runs; for Megatron-LM with its arguments."""
    from shardwright.exporters.megatron.export import difference
    from shardwright.reports.text.evaluation import Rung
    from shardwright.search.ladder import ladder
    from shardwright.search.rules.filters import Filters
    from shardwright.trainers.runs import limits_of_trainer, runners

    trainers = runners(mine)
    megatron = mine.uniform and "megatron" in trainers
    steps = ladder(
        mine,
        efficiency=efficiency,
        space=space,
        filters=Filters(rules=limits),
        accepted=lambda plan: not trainers or not any(limits_of_trainer(trainers[0])(plan)),
    )
    rungs, before = [], mine
    for step in steps:
        change = difference(before, step.plan) if megatron else None
        added, removed = (change.added, change.removed) if change else ((), ())
        rungs.append(Rung(plan=step.plan, free=step.free, added=added, removed=removed))
        before = step.plan
    return tuple(rungs)
