"""What a search over offers found, as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.plans.document import to_document
from shardwright.reports.documents.findings import Document, finding_document
from shardwright.reports.documents.ranking import VERSION, infeasible_document
from shardwright.reports.text.plans import risk_document
from shardwright.reports.text.shop import chosen
from shardwright.reports.words import offers_assumed
from shardwright.search.market.result import Shopping, ShopReport, limits_of
from shardwright.search.renting import Rental


def shop_document(result: Shopping, assumed: Sequence[str]) -> Document:
    """Return what `shop --json` prints."""
    return {
        "version": VERSION,
        "front": [_choice_document(place, result) for place in range(len(result.front))],
        "picks": {
            "knee": result.picks.knee,
            "cheapest_within_deadline": result.picks.cheapest_in_time,
            "cheapest_on_demand_within_deadline": result.picks.on_demand_in_time,
            "fastest_within_budget": result.picks.fastest_in_budget,
        },
        "chosen": None if result.infeasible else chosen(result),
        "deadline_hours": result.deadline_hours,
        "budget_dollars": result.budget_dollars,
        "sure": result.sure,
        **({} if result.infeasible is None else {"infeasible": infeasible_document(result.infeasible)}),
        "search": _report_document(result.report),
        "assumed": [*assumed, *offers_assumed(result.offers.offers, result.offers.assumed)],
    }


def _choice_document(place: int, result: Shopping) -> Document:
    choice, step = result.front[place], result.steps[place]
    return {
        "gpus": choice.gpus,
        "rent": [_rental_document(rental) for rental in choice.rentals],
        **risk_document(choice),
        "chances": dict(limits_of(result).chances(choice)),
        "step": None
        if step is None
        else {"gpus": step.gpus, "gpu": step.gpu, "faster": step.faster, "dearer": step.dearer},
        "plan": to_document(choice.plan),
    }


def _rental_document(rental: Rental) -> Document:
    offer = rental.offer
    return {
        "gpu": offer.pool.gpu.name,
        "machines": rental.machines,
        "gpus": rental.gpus,
        "market": offer.market,
        "provider": offer.provider,
        "region": offer.region,
        "dollars_per_machine_hour": offer.dollars_per_hour,
        "preemptions_per_machine_hour": offer.preemptions_per_hour,
    }


def _report_document(report: ShopReport) -> Document:
    return {
        "counts": report.counts,
        "layouts": report.layouts,
        "costed": report.costed,
        "mixes": report.mixes,
        "seconds": report.seconds,
        "phases": dict(report.phases),
        "not_covered": [finding_document(kind) for kind in report.not_covered],
    }
