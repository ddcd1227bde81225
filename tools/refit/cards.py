"""Landmarks among the published runs, each a card: a file of `docs/cards` with the command that predicts the run, what
was measured, and what each release predicted where that moved.

`python -m tools.refit cards` predicts them anew, and writes the files and their page.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Annotated

import yaml

import shardwright
from shardwright.commands import option
from shardwright.errors import bad, suggestion
from shardwright.files import write_atomically
from shardwright.reports.accuracy import markdown_table
from shardwright.units import GIBIBYTE, format_seconds
from shardwright.validation.outcome import Outcome
from shardwright.validation.validate import validate

FOLDER = Path(__file__).parents[2] / "docs" / "cards"
PAGE = FOLDER.with_suffix(".md")
MOVED = 0.001  # of a figure
GOOD = (0.95, 1.10)  # predicted over measured, what is aimed at
AIM = 13 / 16
FAR = 0.25
FITS = 0.5  # the probability from which a run is said to fit
DIGITS = 5
LINE = 120

LEAD = """# Landmarks

<!-- Written by `make cards`; edit the files in docs/cards instead. -->

Runs that readers know, those that are predicted badly too. **They are in sample**: the overheads of frameworks and the
width of intervals are fitted to a table that has them, and 3,000 others; how well a run is predicted that no constant
has seen is [elsewhere](accuracy.md). Each file has the source, what was measured, and what every release predicted from
the day on that it moved. Its command predicts the run anew: `shardwright validate --row ID --json`. `make cards` does
so for all, and stops where a figure moved by more than 0.1 % and nobody says why; a test does too. Memory, where it is
published, is predicted over measured as well."""
CHANGES = """Seconds are predicted over measured, memory is the peak of a GPU, as the run publishes it (of the whole
process where it publishes none). Release 0.2.0 predicted from the row as its own table had it, or, where it had none,
from today's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPrediction:
    """What a release predicts of a run: seconds of an iteration with the ends of their 80 % interval, peak GiB of a GPU
    in the run's own definition, and the probability that it fits. `cause` says why it is not what it was."""

    release: str
    date: date
    seconds: float
    low: float
    high: float
    memory_gib: float
    fits: float
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A landmark. `seconds` of an iteration and `memory_gib` of a GPU are measured, None where not published; a run
    without either failed. `predictions` begin with the oldest release."""

    name: str
    title: str
    why: str
    row_id: str
    source: str
    command: str
    seconds: float | None
    memory_gib: float | None
    predictions: tuple[CardPrediction, ...]
    last_verified: date

    @property
    def failed(self) -> bool:
        return self.seconds is None and self.memory_gib is None

    @property
    def ratio(self) -> float | None:
        """Predicted over measured seconds, by the latest prediction."""
        return None if self.seconds is None else self.predictions[-1].seconds / self.seconds

    @property
    def inside(self) -> bool:
        """Whether the measured seconds lie in the interval; of a failed run, whether it is predicted not to fit."""
        latest = self.predictions[-1]
        if self.seconds is None:
            return latest.fits < FITS
        return latest.low <= self.seconds <= latest.high


def read_cards(folder: Path = FOLDER) -> tuple[Card, ...]:
    """Return the cards of a folder by name. Raises SpecError for a file that is none."""
    return tuple(_card(path) for path in sorted(folder.glob("*.yaml")))


def _card(path: Path) -> Card:
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    names = [field.name for field in fields(Card) if field.name != "name"]
    if not isinstance(given, dict) or sorted(given) != sorted(names):
        raise bad(str(path), "is no card", f"give it {', '.join(names)}")
    try:
        predictions = tuple(CardPrediction(**entry) for entry in given["predictions"])
    except TypeError as error:
        raise bad(str(path), f"has a prediction that is none: {error}", "see the other cards") from None
    return Card(**{**given, "name": path.stem, "predictions": predictions})


def card_text(card: Card) -> str:
    """Return a card as the YAML of its file."""
    words = {key: value for key, value in asdict(card).items() if key != "name"}
    words["predictions"] = list(words["predictions"])
    return yaml.safe_dump(words, sort_keys=False, allow_unicode=True, width=LINE)


def predicted_now(cards: Sequence[Card]) -> Mapping[str, Outcome]:
    """Return the outcomes of the cards' runs by what this version predicts, by row_id."""
    validation = validate(rows=[card.row_id for card in cards])
    return {outcome.run.row_id: outcome for outcome in validation.outcomes}


def prediction_of(outcome: Outcome, release: str, on: date, cause: str) -> CardPrediction:
    """Return what an outcome predicts, to five digits."""
    predicted = outcome.predicted
    if predicted is None:
        raise bad(f"row {outcome.run.row_id}", "is not predicted", "choose another run for the card")
    return CardPrediction(
        release=release,
        date=on,
        seconds=_rounded(predicted.seconds),
        low=_rounded(predicted.low_seconds),
        high=_rounded(predicted.high_seconds),
        memory_gib=_rounded(predicted.memory_bytes / GIBIBYTE),
        fits=round(predicted.fit_probability, 2),
        cause=cause,
    )


def moved(before: CardPrediction, after: CardPrediction) -> bool:
    """Whether a figure differs by more than 0.1 %, the probability to fit by more than a hundredth."""
    figures = [(getattr(before, name), getattr(after, name)) for name in ("seconds", "low", "high", "memory_gib")]
    apart = any(abs(new / old - 1.0) > MOVED for old, new in figures)
    return apart or abs(after.fits - before.fits) > 1.5 / 100


def brought_up(card: Card, outcome: Outcome, release: str, on: date, cause: str) -> Card:
    """Return a card with its row's figures, and with what `release` predicts where that moved: as a further prediction,
    or in place of that of the same release, whose cause stays beside the new one. Raises SpecError where it moved and
    there is no cause."""
    run, bytes_ = outcome.run, outcome.measured_bytes
    seconds = outcome.measured_seconds
    verified = replace(
        card,
        source=run.source_file,
        command=f"shardwright validate --row {card.row_id} --json",
        seconds=None if seconds is None else _rounded(seconds),
        memory_gib=None if bytes_ is None else _rounded(bytes_ / GIBIBYTE),
        last_verified=on,
    )
    after = prediction_of(outcome, release, on, cause)
    latest = card.predictions[-1] if card.predictions else None
    if latest is not None and not moved(latest, after):
        return verified
    if not cause:
        was = "is new" if latest is None else f"moves from {latest.seconds:g} s ({latest.low:g} to {latest.high:g})"
        now = f"{after.seconds:g} s ({after.low:g} to {after.high:g})"
        raise bad(f"card {card.name}", f"{was}, now {now}", "say why: --cause")
    if latest is None or latest.release != release:
        return replace(verified, predictions=(*card.predictions, after))
    after = replace(after, cause="; ".join(dict.fromkeys((latest.cause, cause))))
    return replace(verified, predictions=(*card.predictions[:-1], after))


def cards_page(cards: Sequence[Card]) -> str:
    """Return the page of the cards as Markdown."""
    timed = [card for card in cards if card.ratio is not None]
    good = sum(GOOD[0] <= (card.ratio or 0.0) <= GOOD[1] for card in timed)
    inside, failed = sum(card.inside for card in timed), [card for card in cards if card.failed]
    far = sum(abs((card.ratio or 0.0) - 1.0) > FAR for card in timed)
    counts = (
        f"Of {len(timed)} runs with a measured time {good} are predicted within {GOOD[0]:.2f} to {GOOD[1]:.2f} of it "
        f"({good / len(timed):.0%}; the aim is 13 of 16, {AIM:.0%}), {inside} lie in their 80 % interval "
        f"({inside / len(timed):.0%}), and {far} are off by more than {FAR:.0%}. Failed runs that are predicted not to "
        f"fit: {sum(card.inside for card in failed)} of {len(failed)}."
    )
    figures = markdown_table(
        ("run", "measured", "predicted", "80 %", "predicted / measured", "inside", "memory", "verified"),
        [_figures(card) for card in cards],
    )
    changes = markdown_table(
        ("run", "release", "seconds", "80 %", "memory", "why"),
        [row for card in cards for row in _changes(card)],
        words=("run", "release", "why"),
    )
    origins = markdown_table(
        ("run", "row", "source", "why it is a landmark"),
        [[card.title, f"`{card.row_id}`", f"`{card.source}`", card.why] for card in cards],
        words=("run", "row", "source", "why it is a landmark"),
    )
    parts = [LEAD, fill(counts, LINE), figures, "## What changed", CHANGES, changes, "## Where they are from", origins]
    return "\n\n".join(parts) + "\n"


def _figures(card: Card) -> list[str]:
    latest = card.predictions[-1]
    measured = "failed" if card.seconds is None else format_seconds(card.seconds)
    predicted = f"fits: {latest.fits:.0%}" if card.failed else format_seconds(latest.seconds)
    range_ = "–" if card.failed else f"{format_seconds(latest.low)} to {format_seconds(latest.high)}"
    ratio = "–" if card.ratio is None else f"{card.ratio:.2f}"
    memory = "–" if card.memory_gib is None else f"{latest.memory_gib / card.memory_gib:.2f}"
    title = f"[{card.title}](cards/{card.name}.yaml)"
    return [title, measured, predicted, range_, ratio, "yes" if card.inside else "no", memory, f"{card.last_verified}"]


def _changes(card: Card) -> list[list[str]]:
    """Return a row for each prediction that took the place of an older one, both in figures."""
    rows = []
    for before, after in pairwise(card.predictions):
        seconds, range_ = "–", "–"
        if card.seconds is not None:
            seconds = _both(*(f"{entry.seconds / card.seconds:.2f}" for entry in (before, after)))
            ranges = (f"{entry.low / card.seconds:.2f} to {entry.high / card.seconds:.2f}" for entry in (before, after))
            range_ = _both(*ranges)
        memory = _both(*(f"{entry.memory_gib:.1f} GiB" for entry in (before, after)))
        rows.append([card.title, after.release, seconds, range_, memory, after.cause])
    return rows


def _both(before: str, after: str) -> str:
    return after if before == after else f"{before} → {after}"


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def day(given: str, epoch: str | None) -> date:
    """Return the day that is given, else that of SOURCE_DATE_EPOCH (seconds, UTC). Raises SpecError without either."""
    try:
        return date.fromisoformat(given) if given else datetime.fromtimestamp(int(epoch or ""), UTC).date()
    except ValueError:
        what = given or (f"SOURCE_DATE_EPOCH={epoch}" if epoch else "no day")
        raise bad("--on", f"{what} says no day of verification", "give YYYY-MM-DD") from None


def cards(
    on: Annotated[
        str, option("--on", metavar="YYYY-MM-DD", help="Day of verification; default: that of SOURCE_DATE_EPOCH.")
    ] = "",
    cause: Annotated[str, option("--cause", metavar="WORDS", help="Why predictions moved; needed where one did.")] = "",
    card: Annotated[tuple[str, ...], option("--card", metavar="NAME", help="Only this card; may be repeated.")] = (),
) -> None:
    """Predict the landmarks of docs/cards anew, and write their files and docs/cards.md; seconds.

    A release adds a prediction to a card where it moved by more than 0.1 %, and needs a cause for it; where cards moved
    for several causes, name the cards of each."""
    verified_on = day(on, os.environ.get("SOURCE_DATE_EPOCH"))
    every = read_cards()
    names = [known.name for known in every]
    if missing := sorted(set(card) - set(names)):
        raise bad(f"card {missing[0]}", "is not in docs/cards", suggestion(missing[0], names))
    chosen = [known for known in every if not card or known.name in card]
    now = predicted_now(chosen)
    release = shardwright.__version__.partition(".dev")[0]
    fresh = [brought_up(known, now[known.row_id], release, verified_on, cause) for known in chosen]
    for known in fresh:
        write_atomically(FOLDER / f"{known.name}.yaml", card_text(known))
    text = cards_page(read_cards())
    write_atomically(PAGE, text)
    print(text)
