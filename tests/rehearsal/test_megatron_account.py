"""The account of memory against what ranks of Megatron-Core took in rehearsals that were drawn (`draws.of_megatron`,
Megatron-Core 0.19.2 on PyTorch 2.13), a row of `data/megatron.csv` each: no trainer is needed to hold it against them.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from tests.rehearsal.draws import best_plan, of_layers

import shardwright
from shardwright.plans.plan import Plan
from shardwright.rehearsal.document import expected, memory_of
from shardwright.rehearsal.rehearse import ranks_of

NEAR = 0.02
TABLE = Path(__file__).parent / "data" / "megatron.csv"
ROWS = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))


def plan_of(row: dict[str, str]) -> Plan:
    """Return the plan of a row, its layers split as they were when it was rehearsed."""
    model = of_layers(shardwright.load_model(row["model"]), int(row["layers"]))
    pins = dict(pin.split("=", 1) for pin in row["pins"].split())
    plan = best_plan(model, "megatron", int(row["gpus"]), int(row["length"]), int(row["batch"]), pins)
    (replica,) = plan.replicas
    splits = [[tuple(map(int, part.split("-"))) for part in stage.split()] for stage in row["stages"].split("|")]
    stages = tuple(
        replace(stage, layers=tuple((begin, end) for begin, end in split))
        for stage, split in zip(replica.stages, splits, strict=True)
    )
    return replace(plan, replicas=(replace(replica, stages=stages),), prediction=None)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['rank']}")
def test_the_account_is_near_what_was_rehearsed(row: dict[str, str]) -> None:
    plan = plan_of(row)
    (place,) = ranks_of(plan, [int(row["rank"])])
    assert expected(plan, place, memory_of(plan)).tensor_bytes == pytest.approx(float(row["bytes"]), rel=NEAR)
