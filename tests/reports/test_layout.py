"""Bars, tables and wrapped lines."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from shardwright.reports.text.layout import EMPTY, FULL, bar, labelled, listed, table, wrapped

FRACTIONS = st.floats(min_value=-1.0, max_value=5.0)
CELLS = st.text(alphabet="abc×–", max_size=9)


@given(FRACTIONS, FRACTIONS, st.integers(1, 40))
def test_a_bar_has_its_width_and_grows_with_the_fraction(one: float, other: float, width: int) -> None:
    short, long = bar(min(one, other), width), bar(max(one, other), width)
    assert len(short) == len(long) == width
    assert short.count(FULL) <= long.count(FULL)
    assert short.count(EMPTY) >= long.count(EMPTY)


def test_a_bar_shows_an_eighth_of_a_character() -> None:
    assert bar(0.0, 4) == "····"
    assert bar(1 / 32, 4) == "▏···"
    assert bar(0.5, 4) == "██··"
    assert bar(7.0, 4) == "████"


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=5))
def test_columns_of_a_table_line_up(rows: list[list[str]]) -> None:
    lines = table(("one", "two", "three"), rows, words=("one",)).splitlines()
    assert len(lines) == len(rows) + 2
    ends = [0]
    for rule in lines[1].split("  ")[1:]:
        ends.append(ends[-1] + 2 + len(rule))
    assert max(map(len, lines)) == ends[-1]
    for row, line in zip(rows, lines[2:], strict=True):
        cells = [line[start + 2 : end].strip() for start, end in itertools.pairwise(ends)]
        assert cells == [cell.strip() for cell in row]


def test_a_narrow_table_goes_without_spare_columns_first_named_first() -> None:
    header, rows = ("name", "spare", "luxury", "value"), [["a", "1", "2", "3"]]
    full = table(header, rows, spare=("luxury", "spare"), width=80)
    assert "spare" in full
    assert "luxury" in full
    some = table(header, rows, spare=("luxury", "spare"), width=24)
    assert "spare" in some
    assert "luxury" not in some
    least = table(header, rows, spare=("luxury", "spare"), width=1)
    assert least.splitlines()[0].split() == ["name", "value"]


@given(st.lists(st.text(alphabet="abcdef", min_size=1, max_size=12), min_size=1, max_size=30), st.integers(40, 120))
def test_wrapped_lines_keep_all_words_within_the_width(words: list[str], width: int) -> None:
    text = " ".join(words)
    for shown in (wrapped(text, "    ", width), labelled("label", text, width)):
        assert max(map(len, shown.splitlines())) <= width
        assert shown.split()[-len(words) :] == words


def test_points_hang_after_their_dash() -> None:
    lines = listed("Title", ["word " * 12], 40).splitlines()
    assert lines[0] == "Title"
    assert lines[1].startswith("  - word")
    assert all(line.startswith("    word") for line in lines[2:])
    assert listed("Title", [], 40) == ""
