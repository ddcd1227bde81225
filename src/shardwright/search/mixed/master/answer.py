"""What can come of looking for a solution: one, a proof that there is none, or neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Solution = TypeVar("Solution", covariant=True)


@dataclass(frozen=True, slots=True)
class Solved(Generic[Solution]):
    """A solution was found."""

    solution: Solution


@dataclass(frozen=True, slots=True)
class Infeasible:
    """It is proven that there is no solution."""


@dataclass(frozen=True, slots=True)
class Open:
    """No solution was found, and no proof that there is none."""
