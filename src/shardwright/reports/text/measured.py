"""A machine profile on a terminal, and as a JSON document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from shardwright.cost.measured.links import FittedLink
from shardwright.cost.measured.summary import FamilySummary, LinkSummary
from shardwright.reports.text.layout import WIDTH, table, wrapped
from shardwright.spec.read.machine_profile import MachineProfile
from shardwright.units import GIGA, format_bytes, format_seconds

HEADER = ("operators", "dtype", "rows", "of peak", "best", "measured/predicted", "error", "corrected")
LEGEND = (
    "of peak: median part of what peak and memory bandwidth allow. error: median of |log(measured/predicted)|, "
    "predicted without this profile; corrected: with it, for rows that the correction was not fitted to."
)


def profile_text(
    profile: MachineProfile,
    path: Path,
    families: Sequence[FamilySummary],
    links: Sequence[LinkSummary],
    fragment: dict[str, object],
    width: int = WIDTH,
) -> str:
    """Return the profile in a table, what was found of the links, and how to plan with it."""
    rows = [
        [
            family.kind,
            family.dtype,
            str(family.rows),
            f"{family.achieved:.0%}",
            f"{family.best:.0%}",
            f"{family.ratio:.2f}",
            f"{family.error:.1%}",
            f"{family.corrected_error:.1%}",
        ]
        for family in families
    ]
    head = f"{profile.gpu.name}: {profile.device} × {profile.count}, {format_bytes(profile.memory_bytes)} each"
    beside = (
        f"links {link.scope}: {_link(link.measured)} measured; {_link(link.predicted)} predicted" for link in links
    )
    unknown = "The catalogue has no such GPU. This cluster file (YAML or JSON) describes it as measured:"
    described = [wrapped(unknown, "", width), json.dumps(fragment, indent=1, ensure_ascii=False)]
    parts = (
        head,
        table(HEADER, rows, words=("operators", "dtype"), width=width),
        wrapped(LEGEND, "  ", width),
        *(wrapped(words, "  ", width) for words in beside),
        *(described if profile.gpu.vendor == "custom" else ()),
        f"Plan with it: shardwright plan … --machine-profile {path}",
    )
    return "\n\n".join(parts)


def profile_document(
    profile: MachineProfile,
    path: Path,
    families: Sequence[FamilySummary],
    links: Sequence[LinkSummary],
    fragment: dict[str, object],
) -> dict[str, object]:
    """Return the same as plain JSON data."""
    return {
        "profile": str(path),
        "gpu": profile.gpu.name,
        "device": profile.device,
        "count": profile.count,
        "memory_bytes": profile.memory_bytes,
        "operators": [asdict(family) for family in families],
        "links": [asdict(link) for link in links],
        "cluster": fragment,
    }


def _link(link: FittedLink) -> str:
    return f"{link.bytes_per_second / GIGA:.3g} GB/s and {format_seconds(link.latency_seconds)} a step"
