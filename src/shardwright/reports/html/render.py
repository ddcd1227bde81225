"""A page as one HTML file that needs nothing else: styles, script, data and pictures are inside, and it asks no network
for anything.

Text that came from a user's files is escaped wherever it stands; JSON inside the page has its `<` escaped, so that no
name in a plan can end the script that holds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from shardwright.reports.palette import style
from shardwright.reports.section import Figure, Page, Section, Table

ASSETS = files("shardwright.reports.html").joinpath("assets")


def rendered(page: Page) -> str:
    """Return the HTML of a page."""
    charts = charts_of(page.sections)
    body = [
        f'<header><p class="brand">Shardwright</p><h1>{escape(page.answer)}</h1>',
        *(f'<p class="context">{escape(line)}</p>' for line in page.context),
        figures_html(page.figures),
        "</header>",
        _contents(page.sections),
        "<main>",
        *(section_html(section) for section in page.sections),
        '<div id="shelf" class="files"></div></main>',
    ]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(page.title)}</title>",
            f"<style>{asset('page.css')}</style></head><body>",
            *body,
            _data("charts", charts),
            _data("files", dict(page.files)),
            *(
                f"<script>{asset(name)}</script>"
                for name in (*(("echarts.js",) if charts else ()), "charts.js", "page.js")
            ),
            "</body></html>\n",
        ]
    )


def charts_of(sections: Iterable[Section]) -> dict[str, object]:
    """Return the data of the charts of sections by name, as the script draws them."""
    return {
        section.name: {"kind": section.chart.kind, **section.chart.data}
        for section in sections
        if section.chart is not None
    }


def asset(name: str) -> str:
    """Return a style sheet or script that ships with the package; that of all pages begins with the palette."""
    text = ASSETS.joinpath(name).read_text(encoding="utf-8")
    return style() + text if name == "page.css" else text


def _data(name: str, value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f'<script type="application/json" id="{name}">{text.replace("<", chr(92) + "u003c")}</script>'


def figures_html(figures: Iterable[Figure]) -> str:
    """Return key figures as HTML."""
    cells = "".join(
        f"<div><dt>{escape(figure.label)}</dt><dd>{escape(figure.value)}"
        + (f"<small>{escape(figure.note)}</small>" if figure.note else "")
        + "</dd></div>"
        for figure in figures
    )
    return f'<dl class="figures">{cells}</dl>'


def _contents(sections: Sequence[Section]) -> str:
    links = "".join(f'<a href="#{escape(section.name)}">{escape(section.title)}</a>' for section in sections)
    hatching = '<label class="hatching"><input type="checkbox" data-hatching> hatched charts</label>'
    return f'<nav aria-label="Contents">{links}{hatching if any(section.chart for section in sections) else ""}</nav>'


def section_html(section: Section) -> str:
    """Return a section as HTML; its chart is drawn by the script."""
    name, chart, table = escape(section.name), section.chart, section.table
    label = "" if chart is None else escape(chart.label)
    parts = (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{escape(section.title)}</h2>',
        f"<p>{escape(section.lead)}</p>" if section.lead else "",
        "<ul>" + "".join(f"<li>{escape(point)}</li>" for point in section.points) + "</ul>" if section.points else "",
        f'<div class="chart" data-chart="{name}" role="img" aria-label="{label}"></div>' if chart else "",
        "" if table is None else _table(table),
        f'<pre tabindex="0"><code>{escape(section.code)}</code></pre>' if section.code else "",
        "</section>",
    )
    return "\n".join(part for part in parts if part)


def _table(table: Table) -> str:
    def cells(row: Iterable[str], tag: str) -> str:
        kinds = (' class="words"' if name in table.words else "" for name in table.columns)
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    rows = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    head = cells(table.columns, "th").replace("<th", '<th scope="col"')
    whole = f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    return whole if table.open else f"<details><summary>As a table</summary>{whole}</details>"
