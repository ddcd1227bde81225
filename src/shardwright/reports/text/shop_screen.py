"""The answer of a search over offers on one screen: what to rent, the front in short, the plan, what next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from shardwright.reports.assumptions import offers_assumed
from shardwright.reports.text.first_screen import COLUMN, next_step, plan_answers
from shardwright.reports.text.layout import WIDTH, labelled
from shardwright.reports.text.plans import run_words
from shardwright.reports.text.shop import chosen, front_text
from shardwright.search.market.result import Shopping
from shardwright.search.renting.choice import FrontPoint
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.units import format_seconds

ROWS = 10
FURTHER = "--details has the whole front, the plan in full, what more buys, what was left out and assumed"


def shop_screen(
    result: Shopping, model: Model, job: Job, assumed: Sequence[str], out: Path | None = None, width: int = WIDTH
) -> str:
    """Return the first screen; `assumed` are words about the job, `out` the file that the plan was written to."""
    blocks: list[list[tuple[str, str]]] = [[("more", FURTHER)]]
    if result.infeasible is None:
        choice = result.front[chosen(result)]
        terms = "; ".join([*assumed, *_terms(choice)])
        answers = [*_answers(choice), *([("assumed", terms)] if terms else [])]
        blocks = [answers, [next_step(choice.plan, out), *blocks[0]]]
    texts = ("\n".join(labelled(name, words, width, column=COLUMN) for name, words in block) for block in blocks)
    return "\n\n".join([front_text(result, model, job, ROWS, width), *texts])


def _answers(choice: FrontPoint) -> Iterator[tuple[str, str]]:
    yield from plan_answers(choice.plan, run_words(choice.plan, choice.hours, choice.dollars))
    interval = choice.checkpoint_interval_seconds
    saved = "" if interval is None else f"; a checkpoint every {format_seconds(interval)}"
    lost = f"{choice.lost_share:.1%} of the paid hours lost"
    yield "risk", f"{choice.interruptions:,.1f} interruptions expected{saved}; {lost}"


def _terms(choice: FrontPoint) -> list[str]:
    """Return what was assumed of the market: prices, interruptions, how many machines are free."""
    return [
        words
        for rental in choice.rentals
        for assumed in rental.offer.assumed
        if assumed.about.startswith(("price", "preemptions")) or assumed.about.endswith("machines")
        for words in offers_assumed([], [assumed])
    ]
