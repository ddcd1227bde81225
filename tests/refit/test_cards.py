"""Evidence cards are those of the table that ships and of the model as it is: none is forgotten when a prediction moves."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import date

import pytest
from tests.cli.running import run
from tools.refit.cards import (
    FOLDER,
    PAGE,
    Card,
    brought_up,
    card_text,
    cards_page,
    day,
    moved,
    predicted_now,
    prediction_of,
    read_cards,
)

from shardwright.errors import SpecError
from shardwright.units import GIBIBYTE
from shardwright.validation.outcome import Outcome
from shardwright.validation.runs import published_failed_runs, published_runs

REMEDY = "run `make cards`, with CAUSE if a prediction moved"
CARDS = read_cards()
LATER = date(2027, 1, 1)


@pytest.fixture(scope="module")
def now() -> dict[str, Outcome]:
    return dict(predicted_now(CARDS))


@pytest.fixture
def card() -> Card:
    return next(card for card in CARDS if card.name == "llama-3.1-405b-h100")


def test_cards_are_of_many_kinds_and_none_is_of_the_same_run() -> None:
    runs = {run.row_id: run for run in (*published_runs(), *published_failed_runs())}
    chosen = [runs[card.row_id] for card in CARDS]
    assert len({run.row_id for run in chosen}) == len(CARDS) >= 20
    assert len({run.source for run in chosen}) >= 10
    assert {"A100", "H100", "H200", "B200", "GB200", "MI300X"} <= {run.gpu.partition("-")[0] for run in chosen}
    assert any(run.gpu.count("x") > 1 for run in chosen), "a mixed cluster"
    assert any(card.failed for card in CARDS)


def test_the_page_does_not_flatter() -> None:
    """At least five are off by more than a quarter: who improves a prediction chooses another hard run."""
    assert sum(card.ratio is not None and abs(card.ratio - 1.0) > 0.25 for card in CARDS) >= 5


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_measured_figures_are_those_of_the_row(card: Card, now: dict[str, Outcome]) -> None:
    outcome = now[card.row_id]
    assert card.source == outcome.run.source_file
    assert (card.seconds or 0.0) == pytest.approx(outcome.measured_seconds or 0.0, rel=1e-4)
    assert (card.memory_gib or 0.0) == pytest.approx((outcome.measured_bytes or 0.0) / GIBIBYTE, rel=1e-4)
    assert card.failed == outcome.failed


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_the_last_prediction_is_that_of_this_version(card: Card, now: dict[str, Outcome]) -> None:
    latest = card.predictions[-1]
    again = prediction_of(now[card.row_id], latest.release, latest.date, latest.cause)
    assert not moved(latest, again), f"{again.seconds:g} s ({again.low:g} to {again.high:g}): {REMEDY}"


def test_files_and_page_are_as_the_command_writes_them() -> None:
    for card in CARDS:
        assert card_text(card) == (FOLDER / f"{card.name}.yaml").read_text(encoding="utf-8"), REMEDY
    assert cards_page(CARDS) == PAGE.read_text(encoding="utf-8"), REMEDY


@pytest.mark.parametrize("name", ["llama-3.1-405b-h100", "amp-mixed-slow", "ultra-scale-80b-failed"])
def test_the_command_of_a_card_gives_its_figures(name: str) -> None:
    card = next(card for card in CARDS if card.name == name)
    program, *words = shlex.split(card.command)
    outcome = run(words)
    assert (program, outcome.code) == ("shardwright", 0), outcome.err
    (printed,) = json.loads(outcome.out)["runs"]
    assert printed["row_id"] == card.row_id
    latest = card.predictions[-1]
    assert printed["predicted_seconds"] == pytest.approx(latest.seconds, rel=1e-3)
    assert printed["interval"] == pytest.approx([latest.low, latest.high], rel=1e-3)
    assert (printed["measured_seconds"] or 0.0) == pytest.approx(card.seconds or 0.0, rel=1e-3)


def test_what_did_not_move_is_verified_and_nothing_else(card: Card, now: dict[str, Outcome]) -> None:
    again = brought_up(card, now[card.row_id], "9.9.9", LATER, "")
    assert again == replace(card, last_verified=LATER)


def test_what_moved_needs_a_cause(card: Card, now: dict[str, Outcome]) -> None:
    slower = replace(card.predictions[-1], seconds=card.predictions[-1].seconds * 1.002)
    before = replace(card, predictions=(*card.predictions[:-1], slower))
    with pytest.raises(SpecError, match=r"moves from .*say why: --cause"):
        brought_up(before, now[card.row_id], "9.9.9", LATER, "")
    later = brought_up(before, now[card.row_id], "9.9.9", LATER, "faster links")
    assert later.predictions[:-1] == before.predictions, "a further release stands after the others"
    assert (later.predictions[-1].release, later.predictions[-1].cause) == ("9.9.9", "faster links")
    again = brought_up(before, now[card.row_id], slower.release, LATER, "faster links")
    assert len(again.predictions) == len(before.predictions), "the release that is not out yet has one prediction"
    assert again.predictions[-1].cause == f"{slower.cause}; faster links"
    assert again.predictions[-1].seconds == card.predictions[-1].seconds


def test_the_day_is_given_or_that_of_the_epoch() -> None:
    assert day("2026-11-27", "0") == date(2026, 11, 27)
    assert day("", "86400") == date(1970, 1, 2)
    for given, epoch in (("", None), ("yesterday", None), ("", "soon")):
        with pytest.raises(SpecError, match="YYYY-MM-DD"):
            day(given, epoch)
