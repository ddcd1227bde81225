"""`shardwright plan`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from click.exceptions import Exit

from shardwright.cli import options
from shardwright.cli.destination import deliver, is_standard_output, require_writable, tell
from shardwright.cli.inputs import dollars, hours, job_of, length_of_documents, part, rules_of
from shardwright.cli.measurements import Calibration, Profiles, efficiency_of, model_of, read_measurements
from shardwright.cli.output import ended_early, note, progress, terminal_width, write, write_json
from shardwright.cli.programs import how_to_train, keep_in, program_file
from shardwright.commands import option
from shardwright.errors import bad
from shardwright.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.cost.compute.efficiency import Efficiency
    from shardwright.plans.ranking import Ranking
    from shardwright.spec.cluster import Cluster
    from shardwright.spec.job import Job
    from shardwright.spec.model import Model
    from shardwright.synthesis.graph import Graph
    from shardwright.synthesis.program import Program


@record
class SearchOptions:
    """The search."""

    objective: Annotated[
        str, option(metavar="NAME", help="What to minimise: time of an iteration, or cost in dollars.")
    ] = "time"
    budget: Annotated[
        str | None,
        option(metavar="USD", help="Most US dollars for the whole run, e.g. 50000 or 2M (needs --tokens)."),
    ] = None
    deadline: Annotated[
        str | None,
        option(metavar="TIME", help="Longest run, e.g. 720 (hours) or 30d (needs --tokens)."),
    ] = None
    sure: options.Sure = None
    top: Annotated[int, option(metavar="N", help="Number of plans to show, each with another layout.")] = 3
    fit: options.Fit = 0.9
    settings: options.Pins = ()
    rules: Annotated[
        Path | None,
        option(metavar="FILE", help="Rules that drop candidates, one a line, e.g. $tp > 8 (docs/rules.md)."),
    ] = None
    gap: Annotated[
        str,
        option(metavar="PART", help="On several GPU types, how near to the optimum a plan must be proved, e.g. 1%."),
    ] = "1%"
    indifference: options.Indifference = "1%"
    tp_per_type: Annotated[
        bool,
        option(
            "--tp-per-type",
            help="On several GPU types, also search plans in which each type has a tensor-parallel degree of its own, "
            "of those that --set tp allows. Takes two to ten times as long; Megatron-LM cannot run such plans.",
        ),
    ] = False
    programs: Annotated[
        bool,
        option(
            "--programs",
            help="On 2 to 16 GPUs, also search for an SPMD program, in which every GPU computes a part of every "
            "operator. Takes some seconds.",
        ),
    ] = False
    fewer: Annotated[
        bool,
        option(
            "--fewer",
            help="With --json, also plan the run on fewer of the machines, for `report` to draw. Up to 24 smaller "
            "clusters are planned: takes two to six times as long.",
        ),
    ] = False
    time_limit: Annotated[
        float | None,
        option(
            metavar="SECONDS",
            help="Stop the search after this time, with the best plan so far and its proved gap; Ctrl-C does the same.",
        ),
    ] = None
    exportable_to: Annotated[
        str | None,
        option(
            metavar="TARGET",
            help="Only plans that this target can run: megatron, bridge, torchtitan, accelerate or deepspeed.",
        ),
    ] = None


def plan(
    cluster: Annotated[
        str,
        option(
            metavar="CLUSTER",
            help="Cluster file, or short form: 32x8xA800-SXM-80 is 32 machines of 8, '1x(2xRTX4090+1xRTX3090)' is one "
            "with GPUs of two types; several joined by +.",
        ),
    ],
    global_batch: Annotated[int, option(metavar="N", help="Samples of one optimizer step, e.g. 512.")],
    training: options.TrainingOptions,
    sequence: options.SequenceOptions,
    asked: SearchOptions,
    model: options.Model = None,
    accept_guess: options.AcceptGuess = False,
    seq_len: Annotated[
        int | None, option(metavar="N", help="Tokens of one sample, e.g. 4096; by default those of measured layers.")
    ] = None,
    tokens: Annotated[
        str | None,
        option(
            metavar="COUNT", help="Tokens of the whole run, e.g. 300B or 1.5T; without it, no run time and no total."
        ),
    ] = None,
    steps: Annotated[
        float | None, option(metavar="N", help="Optimizer steps of the whole run, instead of --tokens.")
    ] = None,
    precision: options.Precision = None,
    fp8_recipe: options.Fp8Recipe = None,
    framework: options.Framework = None,
    mask_documents: options.MaskDocuments = None,
    prices: options.Prices = None,
    profile: Profiles = (),
    calibration: Calibration = None,
    out: Annotated[
        Path | None,
        option("--out", "-o", metavar="FILE", help="Write the best plan to this file, e.g. plan.json."),
    ] = None,
    details: options.Details = False,
    json: options.AsJson = False,
) -> None:
    """Find the best parallel strategy for a model on a cluster: all that Megatron-LM can run and, on several types
    of GPUs, plans that mix them.

    Exit code 3: nothing fits, or nobody runs it. Where the one framework that is named does not run the model, its plan
    is printed all the same, to compare with, and the next command is for one that does.

    Examples:

    \b
      shardwright plan --model llama-2-70b --cluster 32x8xA800-SXM-80 \\
          --global-batch 512 --seq-len 4096
      shardwright plan --model ./config.json --cluster cluster.yaml --global-batch 1024 --seq-len 8192 \\
          --tokens 1T --objective cost --deadline 720 --out plan.json
      shardwright plan --model llama-3.1-8b --cluster 2x8xH100-SXM --global-batch 128 --seq-len 8192 \\
          --set tp=1,2 --set recompute=none --json
      shardwright plan --model llama-3.1-70b --cluster 1x2xRTX3090 --global-batch 16 --seq-len 512 \\
          --adapter qlora:8 --framework fsdp
      shardwright plan --profile layers.json --cluster cluster.yaml --global-batch 1024
    """
    from shardwright.plans.document import dumps
    from shardwright.spec.catalog.prices import load_prices
    from shardwright.spec.read.cluster import load_cluster
    from shardwright.trainers.plan import ANY, USUAL

    limit = asked.time_limit
    if limit is not None and not limit > 0.0:
        raise bad("--time-limit", f"must be more than 0 seconds, not {limit:g}", "leave it out for no limit")
    if asked.programs and calibration is not None:
        raise bad("--programs", "stands beside --calibration, which knows no programs", "leave one of them out")
    if asked.fewer and not json:
        raise bad("--fewer", "is for the document that --json prints", "add --json, or give it to `shardwright report`")
    require_writable(out, [model, cluster, asked.rules, prices, *profile, calibration], json=json)
    measurements = read_measurements(profile, calibration)
    precision = measurements.precision(precision)
    described = model_of(model, measurements, precision, accept_guess=accept_guess)
    unknown = measurements.unknown_gpus(described, precision)
    machines = load_cluster(cluster, prices=load_prices(prices) if prices else (), measured=unknown)
    if asked.tp_per_type and len({pool.gpu.name for pool in machines.pools}) == 1:
        note("--tp-per-type changes nothing on GPUs of one type")
    frameworks = tuple(word.strip() for word in framework.split(",")) if framework else ()
    job = job_of(
        training,
        sequence,
        global_batch=global_batch,
        seq_len=measurements.seq_len(seq_len),
        tokens=tokens,
        steps=steps,
        precision=precision,
        fp8_recipe=fp8_recipe,
        framework=USUAL if frameworks in ((), (ANY,)) else frameworks[0],
        objective=asked.objective,
        budget_dollars=dollars(asked.budget, "--budget"),
        deadline_hours=hours(asked.deadline, "--deadline"),
        document_tokens=length_of_documents(mask_documents, measurements.seq_len(seq_len)),
    )
    efficiency = efficiency_of(measurements, described, machines, job)
    kept: list[str] = []
    keep = None if out is None or is_standard_output(out) else keep_in(kept)
    ranking = _searched(described, machines, job, frameworks, asked, efficiency, keep)
    if out is not None and ranking.plans:
        deliver(dumps(ranking.best), out)
        if kept:
            deliver(kept[0], program_file(out))
            note(f"the program: {how_to_train(ranking, program_file(out))}")
    if json:
        from shardwright.reports.documents.ranking import ranking_document

        write_json(ranking_document(ranking))
    else:
        _tell(ranking, out, described, machines, job, details=details)
    if ranking.infeasible or ranking.no_trainer:
        raise Exit(3)


def _searched(
    model: Model,
    cluster: Cluster,
    job: Job,
    frameworks: tuple[str, ...],
    asked: SearchOptions,
    efficiency: Efficiency | None,
    keep: Callable[[Graph, Program], None] | None,
) -> Ranking:
    """Return the best plans, and beside them whatever was asked for; an SPMD program goes to `keep`."""
    from shardwright.search.objective import MOST_INDIFFERENCE
    from shardwright.search.planner import on_fewer, with_nearby, with_program, with_usual
    from shardwright.search.space.axes import parse_pins
    from shardwright.spec.catalog.frameworks import OWN
    from shardwright.trainers.plan import USUAL, found_within
    from shardwright.trainers.plan import plan as search
    from shardwright.units import format_dollars, format_seconds

    rules = rules_of(asked.rules, cluster)
    space = replace(parse_pins(asked.settings), tp_per_type=asked.tp_per_type)
    indifference = part(asked.indifference, "--indifference", most=MOST_INDIFFERENCE)
    gap = part(asked.gap, "--gap")
    same: dict[str, Any] = {"space": space, "fit": asked.fit, "efficiency": efficiency}
    figure = format_dollars if job.objective == "cost" else format_seconds
    words = f"searching for plans of {model.name} on {cluster.gpus} GPUs"
    with ended_early(asked.time_limit), progress(words, figure):
        ranking = search(
            model,
            cluster,
            job,
            frameworks=frameworks,
            rules=rules,
            top=asked.top,
            exportable_to=asked.exportable_to,
            gap=gap,
            indifference=indifference,
            sure=asked.sure,
            **same,
        )
        if not ranking.plans:
            return ranking
        within = found_within(ranking, rules, asked.exportable_to)
        ranking = with_usual(with_nearby(ranking, **same, **within), **same, **within)
        if asked.fewer:
            smaller = on_fewer(ranking.best, rules=within["rules"], indifference=indifference, **same)
            ranking = replace(ranking, fewer=smaller)
        if asked.programs:
            ranking = with_program(ranking, fit=asked.fit, efficiency=efficiency, keep=keep)
    if not (frameworks or asked.exportable_to) and ranking.best.job.framework not in (USUAL, OWN):
        others = f"the best plan of the others, for {ranking.best.job.framework}"
        note(f"{USUAL} does not run this job of {model.name}: {others}")
    return ranking


def _tell(ranking: Ranking, out: Path | None, model: Model, cluster: Cluster, job: Job, *, details: bool) -> None:
    """Print what a search came to."""
    from shardwright.reports.text.first_screen import first_screen
    from shardwright.reports.text.layout import wrapped
    from shardwright.reports.text.terminal import infeasible_text, ranking_text
    from shardwright.reports.words import in_words

    width = terminal_width()
    if ranking.infeasible:
        write(infeasible_text(ranking, model, cluster, job, width))
        return
    nobody = "" if ranking.no_trainer is None else f"{wrapped(in_words(ranking.no_trainer), '', width)}\n\n"
    text = ranking_text(ranking, width) if details else first_screen(ranking, out, width, sys.argv[1:])
    tell(nobody + text, beside=out)
