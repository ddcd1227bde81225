"""Efficiency learned from measured operators and collectives."""

from __future__ import annotations

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.learned.learned import Learned as Learned


def default_efficiency() -> Efficiency:
    """Return the efficiency that planning uses where the user gives none."""
    return Learned()
