"""Where a passage to the next generation begins, and where a keeper is. No PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from shardwright.plans.plan import Plan
from shardwright.recovery.outlook import Outlook
from shardwright.recovery.quorum import Generation, Machine
from shardwright.recovery.ways import Templates

ENDED, GAVE_UP, BAD_INPUT = 0, 1, 2
"""How keepers exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The generation before with its plan and the machines in the order of its seats, what is expected of machines, and
    new plans that were made before. `alone_since` is when (monotonic) this machine was first in a minority of it."""

    generation: Generation
    plan: Plan
    seated: tuple[Machine, ...] = ()
    outlook: Outlook = field(default_factory=Outlook)
    templates: Templates = field(default_factory=dict)
    alone_since: float = inf


@dataclass(slots=True, kw_only=True)
class Term:
    """Where a keeper is: the generation that it last started, and the newest that it has promised itself to."""

    base: Base
    promised: int = 0
