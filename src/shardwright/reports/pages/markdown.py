"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, words: Collection[str] | None = None
) -> str:
    """Return a table; the columns named in `words`, else the first, are flush left, the others right."""
    left = header[:1] if words is None else words
    marks = ["---" if name in left else "---:" for name in header]
    return "\n".join(
        f"| {' | '.join(cell.strip().replace('|', '/') for cell in row)} |" for row in (header, marks, *rows)
    )
