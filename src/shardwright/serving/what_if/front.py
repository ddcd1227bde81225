"""Time and dollars of the same run on fewer of the machines, by plans that are made at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from shardwright.plans.plan import Plan
from shardwright.reports.html.section import Chart, Section, Table
from shardwright.search.renting.expected import run_totals
from shardwright.search.replan import Kept, replan
from shardwright.spec.read.cluster import parse_cluster
from shardwright.units import SECONDS_PER_HOUR, format_dollars, format_seconds

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the machines of a group
MOST_POINTS = 24
HOURS_PER_DAY = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    cluster: str
    hours: float
    dollars: float


def front_section(plan: Plan, cluster: str, kept: Kept) -> Section:
    """Return what fewer machines of `cluster`, in its short form, would take and cost: plans with the settings of
    `plan`, a priced one of a whole run."""
    hours, dollars = run_totals(plan)
    if hours is None or dollars is None:
        missing = "the tokens of the run" if hours is None else "the price of these GPUs"
        return Section(name="front", title="Time against money", lead=f"Needs {missing}.")
    here = _Point(cluster=cluster, hours=hours, dollars=dollars)
    points = [here, *_points(plan, cluster, kept)]
    best = _front(points)
    groups = {
        "no other is faster and cheaper": best,
        "slower and dearer": [each for each in points if each not in best],
    }
    series = [
        {"name": name, "points": [[each.hours / HOURS_PER_DAY, each.dollars, each.cluster] for each in found]}
        for name, found in (("these machines", [here]), *groups.items())
        if found
    ]
    return Section(
        name="front",
        title="Time against money",
        lead="The same run on fewer of the machines, with plans made at once; choose a point to plan it.",
        chart=Chart(
            kind="points",
            label=f"Training time against cost of {len(points)} choices of machines; the table lists them.",
            data={
                "x": {"unit": "days", "name": "training time"},
                "y": {"unit": "dollars", "name": "cost of the run"},
                "series": series,
                "limits": list(_limits(plan)),
            },
        ),
        table=Table(
            columns=("machines", "time", "cost", "on the front"),
            rows=tuple(_row(each, each in best) for each in sorted(points, key=lambda each: each.hours)),
            words=("machines",),
        ),
    )


def _points(plan: Plan, cluster: str, kept: Kept) -> Iterator[_Point]:
    for part in list(_parts(cluster))[:MOST_POINTS]:
        found = replan(plan, parse_cluster(part), kept=kept)
        if found is None:
            continue
        hours, dollars = run_totals(found)
        if hours is not None and dollars is not None:
            yield _Point(cluster=part, hours=hours, dollars=dollars)


def _parts(cluster: str) -> Iterator[str]:
    """Yield parts of a cluster in short form, the larger ones first: all groups of machines alike, then each alone."""
    groups = [(int(count), rest) for count, _, rest in (part.strip().partition("x") for part in cluster.split("+"))]
    together = [(share,) * len(groups) for share in reversed(SHARES)]
    alone = [
        tuple(share if place == group else 0.0 for place in range(len(groups)))
        for group, share in product(range(len(groups)), reversed(SHARES))
    ]
    seen = {tuple(count for count, _ in groups)}
    for shares in (*together, *alone):
        counts = tuple(round(share * count) for share, (count, _) in zip(shares, groups, strict=True))
        if any(counts) and counts not in seen:
            seen.add(counts)
            yield "+".join(f"{count}x{rest}" for count, (_, rest) in zip(counts, groups, strict=True) if count)


def _front(points: list[_Point]) -> list[_Point]:
    found: list[_Point] = []
    for each in sorted(points, key=lambda point: (point.hours, point.dollars)):
        if not found or each.dollars < found[-1].dollars:
            found.append(each)
    return found


def _row(point: _Point, best: bool) -> tuple[str, ...]:
    time = format_seconds(point.hours * SECONDS_PER_HOUR)
    return point.cluster, time, format_dollars(point.dollars), "yes" if best else "no"


def _limits(plan: Plan) -> Iterator[dict[str, object]]:
    if plan.job.deadline_hours is not None:
        yield {"axis": "x", "value": plan.job.deadline_hours / HOURS_PER_DAY, "name": "deadline"}
    if plan.job.budget_dollars is not None:
        yield {"axis": "y", "value": plan.job.budget_dollars, "name": "budget"}
