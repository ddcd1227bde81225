"""Time and dollars of the same run on fewer of the machines, by plans that are made at once."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Fewer
from shardwright.reports.html import front
from shardwright.reports.html.section import PageSection
from shardwright.search.advice.fewer import fewer_counts, point
from shardwright.search.replan import Kept, replan
from shardwright.spec.read.cluster import parse_cluster


def front_section(plan: Plan, cluster: str, kept: Kept) -> PageSection:
    """Return what fewer machines of `cluster`, in its short form, would take: plans with the settings of `plan`."""
    groups = [(int(count), rest) for count, _, rest in (part.strip().partition("x") for part in cluster.split("+"))]
    here = point(tuple(count for count, _ in groups), plan)
    return front.front_section(
        (cluster, here), list(_fewer(plan, groups, kept)), plan.job, "; choose a point to plan it"
    )


def _fewer(plan: Plan, groups: list[tuple[int, str]], kept: Kept) -> Iterator[tuple[str, Fewer]]:
    for nodes in fewer_counts([count for count, _ in groups]):
        part = "+".join(f"{count}x{rest}" for count, (_, rest) in zip(nodes, groups, strict=True) if count)
        replanned = replan(plan, parse_cluster(part), kept=kept)
        if replanned is not None:
            yield part, point(nodes, replanned)
