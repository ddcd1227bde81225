"""The map of a cluster: which stage of which kind of replica each GPU works for, machine by machine."""

from __future__ import annotations

from itertools import groupby, pairwise

import numpy as np

from shardwright.arrays import Ints
from shardwright.plans.placement import placement_of
from shardwright.plans.plan import Plan
from shardwright.reports.section import Chart, Section, Table
from shardwright.reports.text.mixed import gpu_words, idle_words
from shardwright.reports.text.strategy import layers_words
from shardwright.units import counted

COLOURS = 8


def map_section(plan: Plan) -> Section:
    """Return the section with the place of every GPU of a legal plan."""
    placement = placement_of(plan)
    stages = [(number, place) for number, replica in enumerate(plan.replicas) for place in range(len(replica.stages))]
    stage = placement.stage
    cells: list[int] = []
    machines: list[dict[str, object]] = []
    used: dict[str, Ints] = {}
    for number, name in enumerate(placement.types):
        of_type = placement.type[stage] == number
        numbers = np.full(sum(pool.gpus for pool in plan.cluster.pools if pool.gpu.name == name), -1, dtype=np.int64)
        numbers[placement.gpu[of_type]] = stage[of_type]
        used[name] = numbers
    for _, group in groupby(plan.cluster.pools, key=lambda pool: pool.machines):
        pools = list(group)
        names, size = " + ".join(pool.gpu.name for pool in pools), sum(pool.gpus_per_node for pool in pools)
        machines += [{"gpu": names, "gpus": size, "number": place} for place in range(pools[0].nodes)]
        columns = [
            used.get(pool.gpu.name, np.full(pool.gpus, -1)).reshape(pool.nodes, pool.gpus_per_node) for pool in pools
        ]
        cells += np.concatenate(columns, axis=1).ravel().tolist()
    kinds = [
        {"name": _stage_words(plan, *where), "mark": str(where[1]), "colour": index % COLOURS, "opacity": 0.85}
        for index, where in enumerate(stages)
    ]
    left = idle_words(plan)
    lead = f"{gpu_words(plan)}; rank order {plan.rank_order}. A square is a GPU, its number the pipeline stage."
    if left:
        lead += f" Left idle: {left}."
    chart = Chart(
        kind="map",
        label=f"Map of {counted(len(machines), 'machine')}: which stage each GPU works for; the table lists the same.",
        data={"machines": machines, "cells": cells, "kinds": kinds},
    )
    return Section(name="map", title="Which GPU does what", lead=lead, chart=chart, table=_table(plan, used, stages))


def _stage_words(plan: Plan, replica: int, place: int) -> str:
    stage = plan.replicas[replica].stages[place]
    kind = f"replica kind {replica + 1}, " if len(plan.replicas) > 1 else ""
    return f"{kind}stage {place}, {layers_words(stage)}"


def _table(plan: Plan, used: dict[str, Ints], stages: list[tuple[int, int]]) -> Table:
    rows = []
    for number, (replica, place) in enumerate(stages):
        stage = plan.replicas[replica].stages[place]
        where = np.flatnonzero(used[stage.gpu] == number)
        rows.append(
            (
                str(replica + 1),
                str(place),
                str(plan.replicas[replica].count),
                f"{stage.gpus} {stage.gpu}",
                layers_words(stage),
                _ranges(where),
            )
        )
    columns = ("replica", "stage", "copies", "GPUs of a copy", "layers", "numbers of the GPUs, by type")
    return Table(columns=columns, rows=tuple(rows), words=columns[3:])


def _ranges(numbers: Ints) -> str:
    """Return numbers as ranges: 0–7, 16–23; of many the first few."""
    breaks = [0, *(np.flatnonzero(np.diff(numbers) > 1) + 1).tolist(), len(numbers)]
    runs = [(int(numbers[a]), int(numbers[b - 1])) for a, b in pairwise(breaks) if b > a]
    shown = ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs[:8])
    return shown + (f", … ({counted(len(runs) - 8, 'range')} more)" if len(runs) > 8 else "")
