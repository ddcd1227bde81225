"""`shardwright.report`: a result as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.learned import default_efficiency
from shardwright.errors import bad, reject
from shardwright.plans.check import check
from shardwright.plans.document import from_document
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Evaluation, Ranking
from shardwright.reports.documents.earlier import current
from shardwright.reports.documents.ranking import ranking_document
from shardwright.reports.documents.shop import shop_document
from shardwright.reports.html.diagnosis import diagnosis_page
from shardwright.reports.html.front import machines_front
from shardwright.reports.html.page_of import comparison_page, plan_page
from shardwright.reports.html.ranking import ranking_page
from shardwright.reports.html.render import rendered
from shardwright.reports.html.run import run_page
from shardwright.reports.html.shop import shop_page
from shardwright.search.market.result import Shopping
from shardwright.search.planner import on_fewer, predict

Subject = Plan | Ranking | Shopping | Evaluation | Mapping[str, Any] | Path


def report(
    subject: Subject,
    other: Plan | None = None,
    *,
    names: tuple[str, str] = ("the first plan", "the second plan"),
    command: str = "",
    efficiency: Efficiency | None = None,
    fewer: bool = False,
) -> str:
    """Return one self-contained HTML page.

    `subject` is a plan, what `plan`, `shop` or `evaluate` returned or printed with `--json`, what `diagnose` printed
    with it, or the folder of a training run; with `other`, two plans are compared. `command` is shown as what repeats
    the result. With
    `fewer` the page of a plan or a ranking has its run on fewer of its machines, for which up to 24 smaller clusters
    are planned if the document lacks them. Raises SpecError for a plan that is not legal and for a document that is
    none of these.
    """
    efficiency = efficiency or default_efficiency()
    document = subject if isinstance(subject, Mapping) else {}
    of_plan = isinstance(subject, Plan | Ranking) or not document.keys() & {"front", "plan", "diagnosis"}
    if fewer and (not of_plan or other is not None or isinstance(subject, Path | Shopping | Evaluation)):
        raise bad("`fewer=`", "is of one plan, or of what `plan` printed", "leave it out")
    if isinstance(subject, Ranking):
        subject = ranking_document(subject)
    elif isinstance(subject, Shopping):
        subject = shop_document(subject, ())
    if isinstance(subject, Evaluation):
        return _compared(subject.plan, subject.best.plans, efficiency)
    if isinstance(subject, Path):
        return rendered(run_page(subject, efficiency, other))
    if isinstance(subject, Plan):
        mine = _ready(subject, efficiency)
        if other is None:
            return _plan_alone(mine, efficiency, command, fewer=fewer)
        return rendered(comparison_page(names, mine, _ready(other, efficiency), efficiency))
    try:
        return _document_page(subject, efficiency, command, fewer=fewer)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        # Documents are read as the commands print them: whatever else is in one, it is not theirs.
        message = f"is not what a command printed with --json ({error!r:.80})"
        raise bad("document", message, "print it anew") from error


def _document_page(document: Mapping[str, Any], efficiency: Efficiency, command: str, *, fewer: bool) -> str:
    if "diagnosis" in document:
        return rendered(diagnosis_page(document, efficiency))
    if "front" in document or "plans" in document:
        document = current(document)
    if "front" in document:
        return rendered(shop_page(document, command=command))
    if "plans" in document:
        if not document["plans"]:
            reason = document["infeasible"]["reason"]["words"] if "infeasible" in document else "nothing was found"
            raise bad("plans", f"is empty: {reason}", "plan again with what that needs")
        if fewer and "fewer" not in document:
            smaller = on_fewer(from_document(document["plans"][0], "plans[0]"), efficiency=efficiency)
            document = {**document, "fewer": [asdict(choice) for choice in smaller]}
        return rendered(ranking_page(document, efficiency, command=command))
    if "best" in document and "plan" in document:
        best = () if document["best"] is None else (from_document(document["best"], "best"),)
        return _compared(from_document(document["plan"], "plan"), best, efficiency)
    if "version" not in document:
        raise bad(
            "document", "has no page", "give a plan file, or what plan, shop, evaluate or diagnose printed as JSON"
        )
    return _plan_alone(_ready(from_document(document), efficiency), efficiency, command, fewer=fewer)


def _compared(mine: Plan, best: tuple[Plan, ...], efficiency: Efficiency) -> str:
    """Return a user's plan beside the best, or alone where there is none."""
    plan = _ready(mine, efficiency)
    if not best:
        return _plan_alone(plan, efficiency)
    return rendered(comparison_page(("your plan", "the best plan"), plan, _ready(best[0], efficiency), efficiency))


def _plan_alone(plan: Plan, efficiency: Efficiency, command: str = "", *, fewer: bool = False) -> str:
    """Return the page of a plan, with `fewer` its run on fewer machines too, which no plan file holds."""
    front = machines_front(plan, on_fewer(plan, efficiency=efficiency) if fewer else ())
    return rendered(plan_page(plan, efficiency, command=command, more=tuple(front)))


def _ready(plan: Plan, efficiency: Efficiency) -> Plan:
    """Return a legal plan with its prediction."""
    reject(check(plan))
    return plan if plan.prediction is not None else predict(plan, efficiency=efficiency)
