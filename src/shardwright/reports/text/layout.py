"""Tables, bars and wrapped lines for the terminal, as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence

WIDTH = 110
SHORTEST = 12  # of a cell that is shortened
FULL, EMPTY = "█", "·"
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def bar(fraction: float, width: int = 24) -> str:
    """Return a bar of `width` characters that is filled to `fraction`, to an eighth of a character."""
    full, part = divmod(round(min(max(fraction, 0.0), 1.0) * width * 8), 8)
    drawn = FULL * full + EIGHTHS[part]
    return drawn + EMPTY * (width - len(drawn))


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: Collection[str] = (),
    spare: Sequence[str] = (),
    cut: str = "",
    width: int | None = None,
) -> str:
    """Return an aligned table; the columns named in `words` are flush left, the others right.

    Where it is wider than `width`, it goes without the columns named in `spare`, the first of them first; then cells
    of the column named `cut` are shortened; then what is left over stands below, behind the first column once more.
    """
    columns = [tuple(column) for column in zip(header, *rows, strict=True)]
    for name in spare:
        if width is None or _table_width(columns) <= width:
            break
        columns = [column for column in columns if column[0] != name]
    if width is not None and _table_width(columns) > width:
        columns = [_shortened(column, columns, width) if column[0] == cut else column for column in columns]
    return "\n\n".join(_aligned(block, words) for block in _blocks(columns, width))


def _aligned(columns: Sequence[Sequence[str]], words: Collection[str]) -> str:
    widths = [max(map(len, column)) for column in columns]
    ruled = [(column[0], "─" * size, *column[1:]) for column, size in zip(columns, widths, strict=True)]
    padded = [
        [cell.ljust(size) if column[0] in words else cell.rjust(size) for cell in column]
        for column, size in zip(ruled, widths, strict=True)
    ]
    return "\n".join("  " + "  ".join(cells).rstrip() for cells in zip(*padded, strict=True))


def _shortened(column: Sequence[str], columns: Sequence[Sequence[str]], width: int) -> tuple[str, ...]:
    """Return a column with its cells short enough for the table, as far as that leaves something to read."""
    size = max(max(map(len, column)) - (_table_width(columns) - width), SHORTEST, len(column[0]))
    return tuple(cell if len(cell) <= size else cell[: size - 1] + "…" for cell in column)


def _blocks(columns: Sequence[Sequence[str]], width: int | None) -> list[list[Sequence[str]]]:
    """Return the columns in tables that are no wider than `width`, if they can be; all begin with the first column."""
    blocks = [[columns[0]]]
    for column in columns[1:]:
        if width is not None and len(blocks[-1]) > 1 and _table_width([*blocks[-1], column]) > width:
            blocks.append([columns[0]])
        blocks[-1].append(column)
    return blocks


def _table_width(columns: Sequence[Sequence[str]]) -> int:
    return sum(2 + max(map(len, column)) for column in columns)


def wrapped(text: str, indent: str, width: int) -> str:
    """Return `text` in lines of at most `width`, each after `indent`; points of a list hang after their dash."""
    further = indent + "  " if text.startswith("- ") else indent
    return _filled(text, width, indent, further)


def paragraphs(parts: Iterable[str]) -> str:
    """Return parts of a text with a blank line between them, those without words left out."""
    return "\n\n".join(part for part in parts if part)


def labelled(label: str, text: str, width: int, *, column: int = 13) -> str:
    """Return `text` wrapped beside a label."""
    head = f"  {label:<{column}} "
    return _filled(text, width, head, " " * len(head))


def listed(title: str, points: Sequence[str], width: int) -> str:
    """Return a title with a list of points below it, or nothing if there are none."""
    return "\n".join([title, *(wrapped(f"- {point}", "  ", width) for point in points)]) if points else ""


def reasoned(reason: str, remedies: Sequence[str], width: int) -> str:
    """Return a reason with what would help listed below it, or alone where nothing would."""
    return listed(reason, remedies, width) or wrapped(reason, "", width)


def _filled(text: str, width: int, first: str, further: str) -> str:
    return textwrap.fill(
        text,
        width=width,
        initial_indent=first,
        subsequent_indent=further,
        break_on_hyphens=False,
        break_long_words=False,
    )
