"""`shardwright evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.cli.output import print_json
from shardwright.errors import bad

EXAMPLES = """Predict time, memory and money of your own plan, and explain the difference to the best.

Examples:

  shardwright evaluate plan.json

  shardwright evaluate --megatron-args run.sh --cluster 32x8xA100-SXM-80

  shardwright evaluate --megatron-args run.sh --cluster cluster.yaml --model llama-2-70b --json
"""


def evaluate(
    plan: Annotated[Path | None, typer.Argument(help="A plan file, as `plan --out` writes it.")] = None,
    megatron_args: Annotated[
        Path | None, typer.Option(help="A Megatron-LM launch script or a file of its arguments, instead of a plan.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Cluster file or short form (with --megatron-args).")] = None,
    model: Annotated[str | None, typer.Option(help="Model, if the arguments do not describe it.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the report.")] = False,
) -> None:
    from shardwright.plan.check import check
    from shardwright.plan.document import load_plan
    from shardwright.report.evaluation import evaluation_text
    from shardwright.search.planner import evaluate as assess

    if (plan is None) == (megatron_args is None):
        raise bad("evaluate", "needs either a plan file or --megatron-args FILE", "see `shardwright evaluate --help`")
    notes: tuple[str, ...] = ()
    if plan is not None:
        mine = load_plan(plan)
    else:
        from shardwright.export.megatron_args import plan_from_megatron
        from shardwright.spec.load_cluster import load_cluster
        from shardwright.spec.load_model import load_model
        from shardwright.spec.reading import read_text

        if cluster is None or megatron_args is None:
            raise bad("--cluster", "is missing", "say on which machines: --cluster 32x8xA100-SXM-80")
        reading = plan_from_megatron(
            read_text(megatron_args),
            cluster=load_cluster(cluster),
            model=None if model is None else load_model(model),
            name=str(megatron_args),
        )
        mine, notes = reading.plan, reading.notes
    problems = check(mine)
    result = assess(mine)
    if json:
        from shardwright.report.documents import evaluation_document

        print_json(evaluation_document(result, problems, notes))
    else:
        print(evaluation_text(result, problems, notes))


evaluate.__doc__ = EXAMPLES
