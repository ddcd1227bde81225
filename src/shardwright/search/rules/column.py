"""The values of one variable of rules for many candidates."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.arrays import Array, Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The values of a variable for many candidates, in any shape that broadcasts with those of other columns.

    Numbers and bools stand for themselves; where `words` is given, values are indices into it. `none` marks the
    candidates for which the variable is None; their value, an index in range all the same, does not count.
    """

    values: Array
    words: tuple[str, ...] | None = None
    none: Bools | None = None
