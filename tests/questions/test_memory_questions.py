"""Questions on memory that people asked in public, with what they saw: `memory.csv`. Each answer is right, or on the
side that its row explains."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

import shardwright
from shardwright.plans.ranking import Ranking
from shardwright.search.space.axes import parse_pins

WITHIN = 0.15  # of what was seen, which is rounded and says seldom what it counts
ROWS = tuple(csv.DictReader((Path(__file__).parent / "memory.csv").read_text(encoding="utf-8").splitlines()))
SIDES = {"above": (1.0 + WITHIN, 1.3), "below": (0.7, 1.0 - WITHIN), "right": (1.0 - WITHIN, 1.0 + WITHIN)}


def answer(row: Mapping[str, str]) -> Ranking:
    """Return the plan that a row describes, if there is room for it."""
    job = shardwright.make_job(
        global_batch=int(row["global_batch"]),
        seq_len=int(row["seq_len"]),
        framework=row["framework"],
        precision="fp16" if "V100" in row["cluster"] else "bf16",
        optimizer=row["optimizer"],
        adapter=row["adapter"] or None,
    )
    space = parse_pins(row["pins"].split())
    cluster = shardwright.load_cluster(row["cluster"])
    return shardwright.plan(shardwright.load_model(row["model"]), cluster, job, space=space, top=1)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['model']} {row['observed_gb']} GB, {row['answer']}" for row in ROWS])
def test_answers_are_right_or_explained(row: Mapping[str, str]) -> None:
    assert row["source"].startswith("https://") and (row["answer"] == "right" or row["why"])
    ranking = answer(row)
    if row["answer"] == "too much":
        assert not ranking.plans
        return
    prediction = ranking.best.predicted
    (stages,) = prediction.memory
    fullest = max(stages, key=lambda stage: stage.total_bytes)
    seen = fullest.total_bytes - (fullest.context_bytes if row["counted"] == "tensors" else 0.0)
    ratio = seen / 1e9 / float(row["observed_gb"])
    if row["answer"] == "fits":
        assert ratio <= 1.0 and prediction.fit_probability > 0.9
    else:
        low, high = SIDES[row["answer"]]
        assert low <= ratio <= high, f"{ratio:.2f} of what was seen"
