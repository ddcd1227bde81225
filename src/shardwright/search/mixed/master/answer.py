"""What can come of looking for a solution: one, a proof that there is none, or neither."""

from __future__ import annotations

from typing import Generic, TypeVar

from shardwright.records import record

Solution = TypeVar("Solution", covariant=True)


@record(kw_only=False)
class Solved(Generic[Solution]):
    """A solution was found."""

    solution: Solution


@record(kw_only=False)
class Infeasible:
    """It is proven that there is no solution."""


@record(kw_only=False)
class Open:
    """No solution was found, and no proof that there is none."""
