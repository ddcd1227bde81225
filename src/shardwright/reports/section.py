"""What a report is made of: sections with a sentence, points, a chart and a table, as values that a terminal, a page
and a document show.

A chart is data for the page's script; its table says the same to those who do not see it, so every section with a
chart has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from shardwright.records import record

ChartKind = Literal["bars", "map", "points", "timeline"]


@record
class Chart:
    """`data` is JSON for the drawing function of `kind`; `label` tells a screen reader what the chart shows."""

    kind: ChartKind
    label: str
    data: Mapping[str, Any]


@record
class Table:
    """Cells as text; the columns named in `words` are flush left, the others right. On a page an `open` table is always
    shown, another one on demand below its chart; on a terminal those named in `spare` go where there is no room."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    open: bool = False


@record
class Section:
    """A part of a report. `name` is its anchor; `points` are a list below the lead, `code` is shown to be copied."""

    name: str
    title: str
    lead: str = ""
    points: tuple[str, ...] = ()
    chart: Chart | None = None
    table: Table | None = None
    code: str = ""


@record
class Figure:
    """A key figure at the head of a page."""

    label: str
    value: str
    note: str = ""


@record
class Page:
    """A page: its title, the answer in a sentence, key figures, sections, and files to save from it by name."""

    title: str
    answer: str
    context: tuple[str, ...]
    figures: tuple[Figure, ...]
    sections: tuple[Section, ...]
    files: Mapping[str, str]
