"""What a search over offers found, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from shardwright.reports.text import question, strategy
from shardwright.reports.text.first_screen import COLUMN, next_step, plan_answers
from shardwright.reports.text.layout import WIDTH, labelled, listed, paragraphs, reasoned, table, wrapped
from shardwright.reports.text.plans import plan_text, risk_text, run_words
from shardwright.reports.words import in_words, offers_assumed
from shardwright.rows import grouped
from shardwright.search.market.result import Shopping, ShopReport, SizeStep, limits_of
from shardwright.search.renting import FrontPoint
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.offers import Offer, Offers
from shardwright.units import SECONDS_PER_HOUR, counted, format_dollars, format_seconds

MOST_ROWS = 24
MOST_TYPES = 4
SPARE = ("checkpoint", "lost", "$/M tokens", "tp·pp·dp", "more buys", "preempted")
WORDS = ("rent", "mark")


def chosen(result: Shopping) -> int:
    """Return the place of the choice that answers the question: cheapest in time, else fastest in the budget, else
    the knee, else the cheapest."""
    picks = (result.picks.cheapest_in_time, result.picks.fastest_in_budget, result.picks.knee)
    cheapest = min(range(len(result.front)), key=lambda place: result.front[place].dollars)
    return next((place for place in picks if place is not None), cheapest)


def shop_text(result: Shopping, model: Model, job: Job, assumed: Sequence[str], width: int = WIDTH) -> str:
    """Return the report: the answer, the front, the chosen plan in full, and what was assumed."""
    choice = None if result.infeasible is not None else result.front[chosen(result)]
    parts = (
        front_text(result, model, job, MOST_ROWS, width),
        _marginal(result, width) if result.front else "",
        "" if choice is None else plan_text(choice.plan, f"The plan of choice {chosen(result) + 1}", width),
        "" if choice is None else risk_text(choice, width),
        _search(result.report, width),
        listed("Assumed", [*assumed, *model.assumed, *_assumed(result)], width),
    )
    return paragraphs(parts)


def front_text(result: Shopping, model: Model, job: Job, rows: int, width: int) -> str:
    """Return what was asked, the answers, and the front in about so many rows."""
    if result.infeasible is None:
        answer = _answers(result, width)
    else:
        remedies = [in_words(remedy) for remedy in result.infeasible.remedies]
        answer = reasoned(f"No offer does: {in_words(result.infeasible.reason)}", remedies, width)
    parts = [_heading(result, model, job, width), answer, *([_table(result, rows, width)] if result.front else [])]
    return "\n\n".join(parts)


def _assumed(result: Shopping) -> list[str]:
    """Return what was assumed of the machines that are on the front; of the others it does not matter."""
    names = {rental.offer.pool.gpu.name for choice in result.front for rental in choice.rentals}
    kept = [offer for offer in result.offers.offers if not names or offer.pool.gpu.name in names]
    return offers_assumed(kept, result.offers.assumed)


def _heading(result: Shopping, model: Model, job: Job, width: int) -> str:
    lines = (
        *(f"Guessed, not known: {words}" for words in model.guesses),
        question.model_line(model),
        offers_words(result.offers),
        question.job_line(job),
        question.images_line(model, job),
    )
    return "\n".join(wrapped(line, "", width) for line in lines if line)


def offers_words(offers: Offers) -> str:
    """Return how many offers there are, of which GPU types, at what price of a GPU and hour."""
    prices = grouped(
        (offer.pool.gpu.name, offer.dollars_per_hour / offer.pool.gpus_per_node) for offer in offers.offers
    )
    types = [f"{name} {_price_range(of_type)}" for name, of_type in prices.items()]
    left = len(types) - MOST_TYPES
    more = f" and {counted(left, 'GPU type')} more" if left > 0 else ""
    return f"{counted(len(offers.offers), 'offer')}, a GPU's hour: {', '.join(types[:MOST_TYPES])}{more}"


def _price_range(prices: Sequence[float]) -> str:
    low, high = min(prices), max(prices)
    return f"${low:,.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"${low:,.2f} to ${high:,.2f}"


def _answers(result: Shopping, width: int) -> str:
    """Return the answers to what was asked, a line each."""
    picks, front, deadline, budget = result.picks, result.front, result.deadline_hours, result.budget_dollars
    fastest = min(range(len(front)), key=lambda place: front[place].hours)
    cheapest = min(range(len(front)), key=lambda place: front[place].dollars)
    safest = min(range(len(front)), key=lambda place: (front[place].preemptions, front[place].dollars))
    safer = front[safest].preemptions < front[cheapest].preemptions
    on_demand = picks.on_demand_in_time if picks.on_demand_in_time != picks.cheapest_in_time else None
    answers = (
        (f"Cheapest within {_duration(deadline or 0.0)}", None if deadline is None else picks.cheapest_in_time),
        ("The same on demand", None if deadline is None else on_demand),
        (f"Fastest for {format_dollars(budget or 0.0)}", None if budget is None else picks.fastest_in_budget),
        ("Where more speed begins to cost more (the knee)", picks.knee),
        ("Fastest", fastest),
        ("Cheapest", cheapest),
        ("Safest" if front[safest].preemptions else "Cheapest without preemptions", safest if safer else None),
    )
    lines = [
        f"{question}: choice {place + 1}, {_sentence(front[place], result)}"
        for question, place in answers
        if place is not None
    ]
    return "\n".join(wrapped(line, "", width) for line in lines)


def _sentence(choice: FrontPoint, result: Shopping) -> str:
    rented = rented_words(choice, result.offers)
    words = f"{rented}, {_duration(choice.hours)} for {format_dollars(choice.dollars)}"
    if choice.preemptions:
        words += f", about {_preemptions(choice)} preemptions"
    odds = limits_of(result).chances(choice)
    return words + "".join(f"; {chance:.0%} sure to keep the {limit}" for limit, chance in odds.items())


def _preemptions(choice: FrontPoint) -> str:
    expected = choice.preemptions
    return f"{expected:,.0f}" if expected >= 9.95 else f"{expected:.1f}" if expected >= 0.05 else "<0.1"


def rented_words(choice: FrontPoint, offers: Offers) -> str:
    """Return what is rented: 512 H100-SXM spot; where it stands only if several offers would be called the same."""
    return " + ".join(f"{rental.gpus} {_label(rental.offer, offers)}" for rental in choice.rentals)


def _label(offer: Offer, offers: Offers) -> str:
    short = f"{offer.pool.gpu.name} {offer.market}"
    alike = [other for other in offers.offers if f"{other.pool.gpu.name} {other.market}" == short]
    return offer.name if len(alike) > 1 else short


def _duration(hours: float) -> str:
    return format_seconds(hours * SECONDS_PER_HOUR)


def _table(result: Shopping, most: int, width: int) -> str:
    shown = _shown(result, most)
    rows = [_cells(place, result) for place in shown]
    names = [name for name in rows[0] if not all(row[name] in ("–", "") for row in rows)]
    body = table(names, [[row[name] for name in names] for row in rows], words=WORDS, spare=SPARE, width=width)
    left = len(result.front) - len(shown)
    more = f"\n  … {left} choices more (--json has all)" if left else ""
    head = wrapped("Time and money: no choice dominates another in time, dollars and preemptions", "", width)
    return f"{head}\n{body}{more}"


def _shown(result: Shopping, most: int) -> list[int]:
    """Return the places to show: all, or of many the picks and some between."""
    count = len(result.front)
    if count <= most:
        return list(range(count))
    picks = result.picks
    named = (picks.knee, picks.cheapest_in_time, picks.on_demand_in_time, picks.fastest_in_budget)
    spread = {round(step * (count - 1) / (most - 1)) for step in range(most)}
    return sorted(spread | {place for place in named if place is not None})


def _cells(place: int, result: Shopping) -> dict[str, str]:
    choice, step = result.front[place], result.steps[place]
    plan = choice.plan
    interval = choice.checkpoint_interval_seconds
    return {
        "#": str(place + 1),
        "rent": rented_words(choice, result.offers),
        "tp·pp·dp": f"{strategy.tensor_parallel_words(plan)}·{strategy.depth_words(plan)}·{plan.data_parallel}",
        "time": _duration(choice.hours),
        "dollars": format_dollars(choice.dollars),
        "sure": f"{limits_of(result).odds(choice):.0%}" if limits_of(result).chances(choice) else "–",
        "$/M tokens": f"{choice.dollars_per_million_tokens:.3g}",
        "preempted": _preemptions(choice) if choice.preemptions else "–",
        "lost": f"{choice.lost_share:.1%}",
        "checkpoint": "–" if interval is None else format_seconds(interval),
        "more buys": "–" if step is None else f"{-step.faster:+.0%} time {step.dearer:+.1%} $",
        "": _mark(place, result),
    }


def _mark(place: int, result: Shopping) -> str:
    picks = result.picks
    names = (
        ("knee", picks.knee),
        ("in time", picks.cheapest_in_time),
        ("on demand in time", picks.on_demand_in_time if picks.on_demand_in_time != picks.cheapest_in_time else None),
        ("in budget", picks.fastest_in_budget),
    )
    return ", ".join(name for name, pick in names if pick == place)


def _marginal(result: Shopping, width: int) -> str:
    """Return what a little more or less than the choice would change."""
    place = chosen(result)
    mine, step = result.front[place], result.steps[place]
    larger = [
        other
        for choice, other in zip(result.front, result.steps, strict=True)
        if other is not None and _follows(choice, mine, other)
    ]
    points = [f"the last {step_words(step)}"] if step is not None else []
    points += [f"another {step_words(other)}" for other in larger]
    return listed(f"What more buys, from choice {place + 1}", points, width)


def _follows(other: FrontPoint, mine: FrontPoint, step: SizeStep) -> bool:
    alike = {rental.offer for rental in other.rentals} == {rental.offer for rental in mine.rentals}
    return alike and other.gpus - step.gpus == mine.gpus


def step_words(step: SizeStep) -> str:
    """Return a step in words: 8 A100-SXM-80: 11% faster, 19% dearer."""
    pace = f"{step.faster:.0%} less time"
    cost = f"{step.dearer:.1%} dearer" if step.dearer >= 0 else f"{-step.dearer:.1%} cheaper"
    return f"{step.gpus} {step.gpu}: {pace}, {cost}"


def _search(report: ShopReport, width: int) -> str:
    searched = f"{report.mixes:,} {'mix' if report.mixes == 1 else 'mixes'} searched"
    words = (
        f"Search: {report.counts:,} numbers of machines, {report.layouts:,} layouts on them, {report.costed:,} plans "
        f"simulated, {searched}, in {format_seconds(report.seconds)}"
    )
    left_out = f"not looked at: {'; '.join(map(in_words, report.not_covered))}" if report.not_covered else ""
    return wrapped(words, "", width) + (f"\n{wrapped(left_out, '  ', width)}" if left_out else "")


ROWS = 10
FURTHER = "--details has the whole front, the plan in full, what more buys, what was left out and assumed"


def shop_screen(
    result: Shopping,
    model: Model,
    job: Job,
    assumed: Sequence[str],
    out: Path | None = None,
    width: int = WIDTH,
    trainers: tuple[str, ...] | None = None,
) -> str:
    """Return the first screen; `assumed` are words about the job, `out` the file that the plan was written to,
    `trainers` who runs it."""
    blocks: list[list[tuple[str, str]]] = [[("more", FURTHER)]]
    if result.infeasible is None:
        choice = result.front[chosen(result)]
        terms = "; ".join([*assumed, *_terms(choice)])
        answers = [*_choice_answers(choice), *([("assumed", terms)] if terms else [])]
        blocks = [answers, [next_step(out, trainers), *blocks[0]]]
    texts = ("\n".join(labelled(name, words, width, column=COLUMN) for name, words in block) for block in blocks)
    return "\n\n".join([front_text(result, model, job, ROWS, width), *texts])


def _choice_answers(choice: FrontPoint) -> Iterator[tuple[str, str]]:
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
