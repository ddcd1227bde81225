"""A validation as text, JSON, page and picture."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.validation.known import KNOWN

from shardwright.reports.accuracy import accuracy_page, accuracy_plot
from shardwright.reports.svg.scatter import LEFT, SIDE, TOP, scatter
from shardwright.reports.validation import SHOWN_RUNS, runs_section, validation_document, validation_text
from shardwright.validation.runs import read_runs
from shardwright.validation.validate import PUBLISHED, Validation, validate

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def known() -> Validation:
    return validate(KNOWN)


def test_the_text_has_every_part_within_the_width(known) -> None:
    text = validation_text(known, width=110)
    for words in (
        "Runs",
        "Against simple rivals",
        "By source",
        "By GPU",
        "Memory, by what",
        "Largest errors",
        "to fit",
    ):
        assert words in text
    for outcome in known.outcomes:
        assert outcome.run.row_id in text
    assert max(map(len, text.splitlines())) <= 120


def test_long_lists_are_cut_with_a_note() -> None:
    many = validate(read_runs(KNOWN) * 3)
    section = runs_section(many.outcomes, SHOWN_RUNS)
    assert section.table is not None
    assert len(section.table.rows) == SHOWN_RUNS
    assert f"of {len(many.outcomes)} runs; --json has all" in section.lead


def test_the_document_has_every_run_with_the_promised_keys(known) -> None:
    document = json.loads(json.dumps(validation_document(known), allow_nan=False))
    assert set(document) == {"version", "runs", "summary"}
    assert [run["row_id"] for run in document["runs"]] == [outcome.run.row_id for outcome in known.outcomes]
    promised = {
        "row_id", "predicted_seconds", "interval", "measured_seconds", "predicted_memory_bytes",
        "measured_memory_bytes", "fit_probability", "assumed",
    }  # fmt: skip
    assert all(promised <= set(run) for run in document["runs"])
    assert document["summary"]["rows"] == len(document["runs"])
    assert document["summary"]["macro"][0]["name"] == "Shardwright"


def test_the_page_has_tables_picture_and_the_cross_validation_beside_it(known, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "cross-validation.md").write_text("Left-out sources: 17%\n")
    page = accuracy_page(known, tmp_path / "accuracy.md", tmp_path / "pictures" / "a.svg")
    assert "](pictures/a.svg)" in page
    assert "## Cross-validation\n\nLeft-out sources: 17%\n" in page
    assert "Read these figures as in-sample" not in page, "only the published runs are known to be"
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert any("constant MFU" in row for row in rows)
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines()}) == 1
    alone = accuracy_page(known, tmp_path / "elsewhere" / "accuracy.md", None)
    assert "Cross-validation" not in alone and ".svg" not in alone


def test_the_page_of_the_published_runs_says_that_it_is_in_sample(known, tmp_path: Path) -> None:
    published = Validation(name=PUBLISHED, outcomes=known.outcomes, summary=known.summary)
    page = accuracy_page(published, tmp_path / "accuracy.md", None)
    assert page.startswith("# How far to trust the figures")
    assert "Read these figures as in-sample" in page
    assert "## Cross-validation\n\nNot done for these figures." in page


def dots(svg: str) -> list[tuple[float, float]]:
    """Return the places of the points of a picture."""
    paths = [path.get("d") or "" for path in ElementTree.fromstring(svg).iter(f"{SVG}path")]
    return [(float(x), float(y)) for path in paths for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", path)]


def test_points_lie_where_their_logarithms_are() -> None:
    svg = scatter({"a <b>": [(1.0, 1.0), (100.0, 100.0)], "c": [(10.0, 100.0)]}, "a & b")
    (x1, y1), (x3, y3), (x2, y2) = dots(svg)
    assert x2 - x1 == pytest.approx((x3 - x1) / 2, abs=0.2)
    assert y2 == y3
    assert y1 - TOP == pytest.approx(SIDE - (x1 - LEFT), abs=0.2)
    words = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"a & b", "a <b> (2)", "c (1)", "1 s", "10 s"} <= set(words)


def test_the_band_is_a_fifth_to_either_side() -> None:
    svg = scatter({"a": [(1.0, 1.0), (10.0, 8.0), (10.0, 12.0)]}, "")
    (band,) = ElementTree.fromstring(svg).iter(f"{SVG}polygon")
    corners = [tuple(map(float, pair.split(","))) for pair in (band.get("points") or "").split()]
    _, below, above = dots(svg)
    for (x, y), corner in ((below, corners[1]), (above, corners[2])):
        assert (corner[0] - x) == pytest.approx(y - corner[1], abs=0.2), (
            "the edge runs through the point, at 45 degrees"
        )


def test_the_picture_of_a_validation_has_a_point_for_every_measured_run(known) -> None:
    svg = accuracy_plot(known)
    assert len(dots(svg)) == known.summary.timed
    assert all(math.isfinite(value) for point in dots(svg) for value in point)


def test_no_point_is_no_picture() -> None:
    with pytest.raises(ValueError, match="no point"):
        scatter({"a": []}, "")
