"""Inputs that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardwright.errors import SpecError, bad

if TYPE_CHECKING:
    from shardwright.cost.efficiency import Efficiency
    from shardwright.plan.plan import Plan
    from shardwright.spec.cluster import Cluster

TARGETS = ("megatron",)
MachineProfiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--machine-profile",
        metavar="FILE",
        help="Times measured on these machines by `shardwright profile`; may be repeated, once a GPU type.",
    ),
]


def measured_efficiency(paths: Sequence[Path] | None, cluster: Cluster) -> Efficiency | None:
    """Return the efficiency model corrected by machine profiles, None (the default model) without any."""
    if not paths:
        return None
    from shardwright.cost.learned import default_efficiency
    from shardwright.cost.profiled import profiled
    from shardwright.spec.machine_profile import load_profile

    return profiled(default_efficiency(), [load_profile(path) for path in paths], cluster)


def require_target(target: str) -> None:
    """Raise SpecError for a target that there is no exporter for."""
    if target not in TARGETS:
        raise bad(f"--to {target}", "there is no such target", f"supported: {', '.join(TARGETS)}")


def refuse_unexportable(plan: Plan, target: str) -> None:
    """Raise SpecError with everything that the target cannot express."""
    from shardwright.export.megatron_limits import unsupported

    require_target(target)
    problems = unsupported(plan)
    if problems:
        raise SpecError(*problems)
