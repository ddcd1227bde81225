"""The pipeline of a plan in time: what each stage of each kind of replica does when, from the exact simulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.iteration.mixed import Mixed, mixed_iteration
from shardwright.cost.iteration.timeline import Kind, TimelineEvent, closing_events, pass_events
from shardwright.plans.plan import Plan, Replica, Stage
from shardwright.reports.palette import DONE, number_of
from shardwright.reports.section import Chart, Section, Table
from shardwright.units import counted, format_seconds

ORDER = tuple(DONE)
HEIGHTS: dict[Kind, float] = {"recompute": 0.48, "synchronise": 0.36}  # of a row; of others MOST
MOST = 0.72
KINDS = [
    {"name": words, "colour": number_of(hue), "opacity": opacity, "height": HEIGHTS.get(kind, MOST)}
    for kind, (words, hue, opacity) in DONE.items()
]
MICRO_BATCHES, CHUNKS, UNITS = ["micro-batch"], ["micro-batch", "virtual stage"], ["wave", "unit"]
MOST_BARS = 24_000  # of a page; of longer pipelines the first and last micro-batches are drawn
OF_STAGES = (
    "What each stage does when, by exact simulation of the schedule. Empty stretches are the pipeline bubble. "
    "What a pass communicates unhidden stands at its end."
)
OF_UNITS = (
    "When each GPU runs each unit (the embedding, a layer, the head): all its micro-batches of a wave through one, "
    "then the next. In empty stretches it waits for the slowest GPU, for gathered weights or for scattered gradients."
)
DIGITS = 6  # of a start or end, relative to the iteration: below a thousandth of a pixel


def timeline_section(plan: Plan, efficiency: Efficiency) -> Section:
    """Return the section of one step of a legal plan."""
    iteration = mixed_iteration(plan, efficiency)
    rows: list[str] = []
    bars: list[list[Any]] = []
    left_out = 0
    for number, replica in enumerate(plan.replicas):
        drawn, skipped = _bars(plan, iteration, number, len(rows), MOST_BARS // len(plan.replicas))
        bars += drawn
        rows += [_name(plan, replica, place, stage) for place, stage in enumerate(replica.stages)]
        left_out += skipped
    digits = DIGITS - int(np.floor(np.log10(iteration.seconds)))
    chart = Chart(
        kind="timeline",
        label=f"Timeline of one iteration of {format_seconds(iteration.seconds)}; the table has the same figures.",
        data={
            "rows": rows,
            "kinds": KINDS,
            "seconds": iteration.seconds,
            "pass": UNITS if plan.layered else MICRO_BATCHES if plan.schedule.virtual_stages == 1 else CHUNKS,
            "bars": [[*bar[:2], round(bar[2], digits), round(bar[3], digits), *bar[4:]] for bar in bars],
        },
    )
    lead = f"{OF_UNITS if plan.layered else OF_STAGES} Drag the slider to zoom."
    if left_out:
        lead += f" {left_out:,} passes in the middle of the step, which repeats, are left out."
    return Section(name="timeline", title="Pipeline", lead=lead, chart=chart, table=_table(plan, iteration))


def _bars(plan: Plan, iteration: Mixed, number: int, first_row: int, budget: int) -> tuple[list[list[Any]], int]:
    """Return the bars of a replica, and how many of its passes are left out."""
    replica = plan.replicas[number]
    passes = list(pass_events(plan, iteration, number))
    shown = passes
    if len(passes) > budget:
        edge = max(budget // (4 * len(replica.stages) * plan.schedule.virtual_stages), 4)
        shown = [
            event for event in passes if min(event.micro_batch, replica.micro_batches - 1 - event.micro_batch) < edge
        ]
    bars = [_bar(event, first_row) for event in (*shown, *closing_events(plan, iteration, number))]
    return bars, len(passes) - len(shown)


def _bar(event: TimelineEvent, first_row: int) -> list[Any]:
    span = (event.start_seconds, event.end_seconds)
    which = (event.wave, event.unit) if event.unit >= 0 else (event.micro_batch, max(event.virtual_stage, 0))
    return [first_row + event.stage, ORDER.index(event.kind), *span, *which]


def _name(plan: Plan, replica: Replica, place: int, stage: Stage) -> str:
    who = f"{replica.count} × " if place == 0 and plan.data_parallel > 1 else ""
    kind = f"replica {plan.replicas.index(replica) + 1} " if len(plan.replicas) > 1 else ""
    if plan.layered:
        return f"{replica.count} × {stage.gpu}: {counted(replica.rows or 0, 'row')}"
    return f"{who}{kind}stage {place}: {stage.tensor_parallel} {stage.gpu}"


def _table(plan: Plan, iteration: Mixed) -> Table:
    rows = []
    for number, (replica, times) in enumerate(zip(plan.replicas, iteration.replicas, strict=True), start=1):
        for place, stage in enumerate(replica.stages):
            forward, backward, again = (
                float(seconds[0, :, place].sum())
                for seconds in (
                    times.stages.forward,
                    times.stages.backward + times.stages.weights,
                    times.stages.recompute,
                )
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
                    f"{busy / iteration.seconds:.1%}",
                )
            )
    columns = ("replica", "stage", "GPUs", "layers", "micro-batches", "forward", "backward", "recomputation", "busy")
    return Table(columns=columns, rows=tuple(rows), words=("GPUs",))
