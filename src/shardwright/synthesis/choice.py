"""What a search at fixed shares comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shardwright.arrays import Floats, Ints
from shardwright.synthesis.integer_program import TimeRow
from shardwright.synthesis.timeline import StepSeconds


@dataclass(frozen=True, slots=True)
class Hint:
    """What a search leaves to the next at other shares: the rows of time that mattered, and the basis it ended with."""

    rows: tuple[TimeRow, ...]
    basis: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A rule for each decision [decisions], the conversions made [C], the time of the step, and a lower bound of the
    time of any choice at these shares. `nodes` of the branch and bound were visited."""

    rules: Ints
    sent: Floats
    seconds: StepSeconds
    bound_seconds: float
    nodes: int = 0
    hint: Hint | None = field(default=None, compare=False, repr=False)

    @property
    def gap(self) -> float:
        """By how much the time exceeds the bound, as a part of the time."""
        return 1.0 - self.bound_seconds / self.seconds.total if self.seconds.total else 0.0
