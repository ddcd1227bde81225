"""What reading a launch gives."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Reading:
    """A plan read from what a user runs. `notes` are what had to be assumed, `ignored` flags that move nothing,
    `uncounted` flags that move time or memory and are not modelled."""

    plan: Plan
    notes: tuple[str, ...]
    ignored: tuple[str, ...]
    uncounted: tuple[str, ...] = ()
