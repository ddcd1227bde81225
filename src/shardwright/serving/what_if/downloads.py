"""Files to take along: the plan, its report, its trace, and what makes a trainer run it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.learned import default_efficiency
from shardwright.cost.site.calibrated import calibrated
from shardwright.cost.site.calibration import SiteCalibration
from shardwright.errors import SpecError, bad
from shardwright.exporters.targets import TARGETS, export
from shardwright.plans.document import dumps
from shardwright.reports.html.report import report
from shardwright.reports.words import in_words
from shardwright.serving.answers import Answer, error_answer
from shardwright.serving.requests import plan_request, planned
from shardwright.serving.what_if.steps import command_line

PLAN, REPORT = "plan", "report"
KINDS = (PLAN, REPORT, *TARGETS)
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a ZIP can hold: the same plan gives the same bytes


def download(fields: object, site: SiteCalibration | None = None, site_file: str = "") -> Iterator[Answer]:
    """Yield the one file for the JSON of a request with its kind (`to`): `name`, `type` and `content`, or `errors`.
    Several files come as one ZIP. Plans are on the site of a calibration if one is given."""
    efficiency = None if site is None else calibrated(default_efficiency(), site)
    try:
        yield _download(dict(fields) if isinstance(fields, Mapping) else {}, efficiency, site_file)
    except SpecError as error:
        yield error_answer(error)


def _download(fields: dict[str, object], efficiency: Efficiency | None, site_file: str) -> Answer:
    to = fields.pop("to", None)
    if to not in KINDS:
        raise bad("to", "is no kind of file", f"one of {', '.join(KINDS)}")
    request = plan_request(fields)
    ranking = planned(request, top=1 if to != REPORT else 3, efficiency=efficiency)
    if ranking.infeasible is not None:
        raise bad("plan", in_words(ranking.infeasible.reason), "change the question")
    if to == REPORT:
        return _file("report.html", report(ranking, command=command_line(request, site_file)))
    files = {"plan.json": dumps(ranking.best)} if to == PLAN else export(ranking.best, str(to)).files
    if len(files) == 1:
        return _file(*next(iter(files.items())))
    return {"name": f"{to}.zip", "type": "application/zip", "content": _zipped(files)}


def _file(name: str, text: str) -> Answer:
    return {"name": name, "type": "application/octet-stream", "content": text.encode()}


def _zipped(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), text)
    return buffer.getvalue()
