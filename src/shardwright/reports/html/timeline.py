"""The pipeline of a plan in time: what each stage of each kind of replica does when, from the exact simulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.iteration.mixed import Mixed, ReplicaTime, mixed_iteration, pipeline_timeline
from shardwright.cost.pipeline.schedule import FORWARD
from shardwright.plans.plan import Plan, Replica, Stage
from shardwright.reports.html.section import Chart, Section, Table
from shardwright.units import format_seconds

FORWARD_BAR, RECOMPUTE_BAR, BACKWARD_BAR, SYNC_BAR, UPDATE_BAR = range(5)
KINDS = (
    {"name": "forward", "colour": 0, "opacity": 0.55, "height": 0.72},
    {"name": "recomputation", "colour": 7, "opacity": 1.0, "height": 0.48},
    {"name": "backward", "colour": 0, "opacity": 1.0, "height": 0.72},
    {"name": "gradients and weights between replicas", "colour": 5, "opacity": 0.8, "height": 0.36},
    {"name": "optimizer", "colour": 2, "opacity": 0.9, "height": 0.72},
)
MOST_BARS = 24_000  # of a page; of longer pipelines the first and last micro-batches are drawn
DIGITS = 6  # of a start or end, relative to the iteration: below a thousandth of a pixel


def timeline_section(plan: Plan, efficiency: Efficiency) -> Section:
    """Return the section of one step of a legal plan."""
    found = mixed_iteration(plan, efficiency)
    rows: list[str] = []
    bars: list[list[Any]] = []
    left_out = 0
    budget = MOST_BARS // len(plan.replicas)
    for replica, times in zip(plan.replicas, found.replicas, strict=True):
        passes, skipped = _passes(plan, replica, times, len(rows), budget)
        bars += passes + _after(found, times, len(rows), len(replica.stages))
        rows += [_name(plan, replica, place, stage) for place, stage in enumerate(replica.stages)]
        left_out += skipped
    digits = DIGITS - int(np.floor(np.log10(found.seconds)))
    chart = Chart(
        kind="timeline",
        label=f"Timeline of one iteration of {format_seconds(found.seconds)}; the table has the same figures.",
        data={
            "rows": rows,
            "kinds": KINDS,
            "seconds": found.seconds,
            "chunks": plan.schedule.virtual_stages,
            "bars": [[*bar[:2], round(bar[2], digits), round(bar[3], digits), *bar[4:]] for bar in bars],
        },
    )
    lead = (
        "What each stage does when, by exact simulation of the schedule. Empty stretches are the pipeline bubble. "
        "Drag the slider to zoom."
    )
    if left_out:
        lead += f" {left_out:,} passes in the middle of the step, which repeats, are left out."
    return Section(name="timeline", title="Pipeline", lead=lead, chart=chart, table=_table(plan, found))


def _passes(
    plan: Plan, replica: Replica, times: ReplicaTime, first_row: int, budget: int
) -> tuple[list[list[Any]], int]:
    """Return the bars of a replica's passes, recomputation apart, and how many passes are left out."""
    when = pipeline_timeline(plan, replica, times)
    edge = max(budget // (4 * len(replica.stages) * plan.schedule.virtual_stages), 4)
    shown = (when.micro_batch < edge) | (when.micro_batch >= replica.micro_batches - edge)
    if len(when.rank) <= budget:
        shown = np.ones(len(when.rank), dtype=bool)
    again = times.stages.recompute[0][when.virtual_stage // len(replica.stages), when.rank]
    bars: list[list[Any]] = []
    columns = (when.rank, when.kind, when.start_seconds, when.end_seconds, again, when.micro_batch, when.virtual_stage)
    for rank, kind, start, end, repeated, micro, virtual in zip(
        *(each[shown].tolist() for each in columns), strict=True
    ):
        which = [micro, virtual // len(replica.stages)]
        row = first_row + rank
        if kind == FORWARD:
            bars.append([row, FORWARD_BAR, start, end, *which])
        else:
            bars.append([row, BACKWARD_BAR, start + repeated, end, *which])
            if repeated > 0.0:
                bars.append([row, RECOMPUTE_BAR, start, start + repeated, *which])
    return bars, int((~shown).sum())


def _after(found: Mixed, times: ReplicaTime, first_row: int, stages: int) -> list[list[Any]]:
    """Return the bars after the pipeline: what communication it does not hide, then the update of the slowest rank."""
    longest = max(replica.busy_seconds for replica in found.replicas)
    bars: list[list[Any]] = []
    for rank in range(stages):
        exposed = float(times.tails[rank]) + float(times.gathers[rank])
        if exposed > 0.0:
            start = times.pipeline_seconds
            bars.append([first_row + rank, SYNC_BAR, start, start + exposed, -1, 0])
        bars.append([first_row + rank, UPDATE_BAR, longest, longest + float(times.optimizer[rank]), -1, 0])
    return bars


def _name(plan: Plan, replica: Replica, place: int, stage: Stage) -> str:
    who = f"{replica.count} × " if place == 0 and plan.data_parallel > 1 else ""
    kind = f"replica {plan.replicas.index(replica) + 1} " if len(plan.replicas) > 1 else ""
    return f"{who}{kind}stage {place}: {stage.tensor_parallel} {stage.gpu}"


def _table(plan: Plan, found: Mixed) -> Table:
    rows = []
    for number, (replica, times) in enumerate(zip(plan.replicas, found.replicas, strict=True), start=1):
        for place, stage in enumerate(replica.stages):
            forward, backward, again = (
                float(each[0, :, place].sum())
                for each in (times.stages.forward, times.stages.backward, times.stages.recompute)
            )
            busy = replica.micro_batches * (forward + backward)
            rows.append(
                (
                    f"{number}",
                    f"{place}",
                    f"{stage.tensor_parallel} {stage.gpu}",
                    f"{stage.layer_count}",
                    f"{replica.micro_batches}",
                    format_seconds(forward),
                    format_seconds(backward - again),
                    format_seconds(again) if again else "–",
                    f"{busy / found.seconds:.1%}",
                )
            )
    columns = ("replica", "stage", "GPUs", "layers", "micro-batches", "forward", "backward", "recomputation", "busy")
    return Table(columns=columns, rows=tuple(rows), words=("GPUs",))
