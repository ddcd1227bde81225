"""`shardwright report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from shardwright.cli.destination import deliver, require_writable
from shardwright.cli.measurements import Profiles, efficiency_of, read_measurements
from shardwright.commands import argument, option
from shardwright.errors import bad

LARGEST_BYTES = 256_000_000


def report(
    source: Annotated[
        Path, argument(metavar="RESULT", help="A plan file, a JSON document, or the --out folder of a run.")
    ],
    other: Annotated[Path | None, argument(metavar="[PLAN.json]", help="A second plan file to compare with.")] = None,
    out: Annotated[Path, option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
    profile: Profiles = (),
    fewer: Annotated[
        bool,
        option("--fewer", help="Add the same run on fewer of the machines: up to 24 smaller clusters are planned."),
    ] = False,
) -> None:
    """Show a result as one HTML page that needs no network: a plan, two plans side by side, what `plan`, `shop`,
    `evaluate` or `diagnose` printed with --json, or the folder of a training run.

    Examples:

    \b
      shardwright report plan.json -o report.html
      shardwright plan … --json --fewer > ranking.json; shardwright report ranking.json -o report.html
      shardwright shop … --json > shop.json; shardwright report shop.json -o shop.html
      shardwright report mine.json theirs.json -o comparison.html
      shardwright report runs/first -o run.html
    """
    from shardwright.plans.document import from_document, load_plan
    from shardwright.reports.html.report import report as page
    from shardwright.spec.text.reading import parse_json, read_text

    require_writable(out, [source, other])
    subject: Any = source
    second = None if other is None else load_plan(other)
    names = ("the first plan", "the second plan")
    efficiency = None
    if not source.is_dir():
        document = parse_json(read_text(source, limit_bytes=LARGEST_BYTES), str(source))
        if second is not None or _is_plan(document):
            plan = from_document(document, str(source))
            measured = read_measurements(profile)
            efficiency = efficiency_of(measured, plan.model, plan.cluster, plan.job)
            subject = plan
        else:
            subject = document
        names = (source.name, "" if other is None else other.name)
    if profile and efficiency is None:
        raise bad("--profile", "goes with plan files; what was printed has its figures", "leave it out")
    deliver(page(subject, second, names=names, efficiency=efficiency, fewer=fewer), out)


def _is_plan(document: object) -> bool:
    """Whether a document is a plan file: what commands print has a version too, and plans inside."""
    from shardwright.plans.document import PRINTED

    return isinstance(document, dict) and "version" in document and not document.keys() & PRINTED
