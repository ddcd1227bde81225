"""Training frameworks: a row of `data/frameworks.csv` has all that is known of one, with source and date.

Which columns are facts of its documentation and which are fitted to published runs is in `data/README.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, get_type_hints

from shardwright.files import shipped_table

Row = Mapping[str, str]
MEGATRON = "megatron"
OWN = "train"  # `shardwright train`, which alone runs unequal replicas and uneven FSDP
Figures = TypeVar("Figures")


@cache
def framework_rows() -> Mapping[str, Row]:
    """Return the rows by the framework's name, in the order in which their patterns are tried."""
    return {row["framework"]: row for row in shipped_table("shardwright.spec.catalog", "frameworks.csv")}


def framework_names() -> tuple[str, ...]:
    return tuple(framework_rows())


def framework_has(framework: str, column: str) -> bool:
    """Return whether a framework has what a column of flags stands for (`data/README.md`)."""
    return framework_rows()[framework][column] == "1"


def framework_options(framework: str) -> tuple[str, ...]:
    """Return the options of a job that a framework leaves to choose."""
    return tuple(framework_rows()[framework]["options"].split())


def experts_in_fp8(framework: str) -> bool:
    """Return whether a framework multiplies by experts in fp8 where it does so by other matrices."""
    return framework_has(framework, "fp8_experts")


def figures(kind: type[Figures], row: Row) -> Figures:
    """Return the dataclass `kind` with the columns of `row` that have the names of its fields; flags are 0 or 1."""
    hints: dict[str, Any] = get_type_hints(kind)
    read: dict[type, Callable[[str], Any]] = {bool: lambda text: bool(int(text)), int: int, float: float, str: str}
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: read[hints[name]](row[name]) for name in names})
