"""Tables and bars for the terminal, as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

FULL, EMPTY = "█", "·"


def bar(fraction: float, width: int = 24) -> str:
    """Return a bar that is filled to `fraction`."""
    filled = round(min(max(fraction, 0.0), 1.0) * width)
    return FULL * filled + EMPTY * (width - filled)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: Collection[int] = ()) -> str:
    """Return an aligned table; the columns in `words` are flush left, the others right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        pairs = enumerate(zip(cells, widths, strict=True))
        padded = [cell.ljust(width) if place in words else cell.rjust(width) for place, (cell, width) in pairs]
        return "  " + "  ".join(padded).rstrip()

    return "\n".join([line(header), line(["─" * width for width in widths]), *(line(row) for row in rows)])


def wrapped(text: str, indent: str, width: int) -> str:
    """Return `text` in lines of at most `width`, each after `indent`."""
    further = indent + "  " if text.startswith("- ") else indent
    return textwrap.fill(text, width=width, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False)
