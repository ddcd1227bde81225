"""The table of frameworks with the columns that a fit makes anew."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from shardwright.spec.catalog.frameworks import framework_rows


def figures_text(figures: Any, digits: int) -> dict[str, str]:
    """Return the fields of a dataclass of numbers with so many significant digits."""
    return {field.name: f"{getattr(figures, field.name):.{digits}g}" for field in fields(figures)}


def frameworks_csv(columns: Mapping[str, Mapping[str, str]]) -> bytes:
    """Return the content of frameworks.csv as it ships, with new `columns` by framework."""
    rows = [{**row, **columns.get(name, {})} for name, row in framework_rows().items()]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
