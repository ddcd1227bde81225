"""`shardwright evaluate`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardwright.cli.measurements import Profiles, efficiency_of, read_measurements
from shardwright.cli.options import AcceptGuess
from shardwright.cli.output import json_text, progress, terminal_width, write
from shardwright.errors import Problem, SpecError, bad

if TYPE_CHECKING:
    from shardwright.cost.compute.efficiency import Efficiency
    from shardwright.plans.plan import Plan

HELP = """Predict time, memory and money of your own plan, and explain the difference to the best, term by term.

Examples:

\b
  shardwright evaluate plan.json
  shardwright evaluate --megatron-args run.sh --cluster 32x8xA100-SXM-80
  shardwright evaluate --megatron-args run.sh --cluster cluster.yaml --model llama-2-70b --json
"""


def evaluate(
    plan: Annotated[
        Path | None, typer.Argument(metavar="[PLAN.json]", help="A plan file, as `plan --out` writes it.")
    ] = None,
    megatron_args: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A Megatron-LM launch script or a file of its arguments, instead of a plan file."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="CLUSTER", help="Cluster file or short form, e.g. 4x8xH100-SXM (with --megatron-args)."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Preset, config.json or YAML, if the arguments do not describe the model."),
    ] = None,
    accept_guess: AcceptGuess = False,
    profile: Profiles = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the report.")] = False,
) -> None:
    from shardwright.plans.abilities import framework_problems
    from shardwright.plans.check import check
    from shardwright.plans.document import load_plan
    from shardwright.reports.text.problems import merged

    if (plan is None) == (megatron_args is None):
        raise bad("evaluate", "needs either a plan file or --megatron-args FILE", "see `shardwright evaluate --help`")
    if megatron_args is not None:
        mine, notes = _from_arguments(megatron_args, cluster, model, accept_guess=accept_guess)
    else:
        assert plan is not None, "one of the two is given"
        for option, value in (("--cluster", cluster), ("--model", model)):
            if value is not None:
                raise bad(option, "goes with --megatron-args; a plan file has its own", f"leave {option} out")
        mine, notes = load_plan(plan), ()
    measurements = read_measurements(profile)
    problems = check(mine) or (() if measurements.layers else tuple(framework_problems(mine)))  # measured layers ran
    efficiency = efficiency_of(measurements, mine.model, mine.cluster, mine.job)
    try:
        with warnings.catch_warnings():
            if problems:
                warnings.simplefilter("ignore")
            answer = _answer(mine, problems, notes, efficiency, json=json)
    except Exception:
        if not problems:
            raise
        # The cost model takes legality for granted: it may fail in any way on a plan that is illegal.
        raise SpecError(*merged(problems)) from None
    write(answer)
    if problems:
        raise typer.Exit(2)


def _answer(
    mine: Plan, problems: tuple[Problem, ...], notes: tuple[str, ...], efficiency: Efficiency | None, *, json: bool
) -> str:
    from shardwright.search.planner import evaluate as assess

    with progress(f"searching for the best plan of {mine.model.name} on {mine.cluster.gpus} GPUs"):
        result = assess(mine, efficiency=efficiency)
    if json:
        from shardwright.reports.documents.ranking import evaluation_document

        return json_text(evaluation_document(result, problems, notes))
    from shardwright.reports.text.evaluation import evaluation_text

    return evaluation_text(result, problems, notes, terminal_width())


def _from_arguments(
    path: Path, cluster: str | None, model: str | None, *, accept_guess: bool
) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan of a Megatron-LM launch script, and notes on how it was read."""
    from shardwright.exporters.megatron.read_args import plan_from_megatron
    from shardwright.spec.read.cluster import load_cluster
    from shardwright.spec.read.model import load_model
    from shardwright.spec.text.reading import read_text

    if cluster is None:
        raise bad("--cluster", "is missing", "say on which machines: --cluster 32x8xA100-SXM-80")
    reading = plan_from_megatron(
        read_text(path),
        cluster=load_cluster(cluster),
        model=None if model is None else load_model(model, accept_guess=accept_guess),
        name=str(path),
    )
    return reading.plan, reading.notes


evaluate.__doc__ = HELP
