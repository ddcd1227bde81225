"""Requests reach no file, keep their limits, and get the library's figures."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwright
from shardwright.errors import SpecError
from shardwright.serving.answers import plan_figures
from shardwright.serving.requests import PlanRequest, planned


def request(**told: object) -> PlanRequest:
    usual = {"model": "opt-350m", "cluster": "1x8xA100-SXM-40", "global_batch": 64, "seq_len": 1024, "tokens": "1B"}
    return PlanRequest(**(usual | told))  # type: ignore[arg-type]


def test_an_answer_has_the_figures_of_the_plan() -> None:
    ranking = planned(request())
    job = shardwright.make_job(global_batch=64, seq_len=1024, tokens=1e9)
    direct = shardwright.plan(shardwright.load_model("opt-350m"), shardwright.load_cluster("1x8xA100-SXM-40"), job)
    told = plan_figures(ranking.best)
    assert told["iteration_seconds"] == direct.best.iteration_seconds
    assert told["interval_seconds"] == list(direct.best.predicted.interval)
    assert told["dollars"] is not None


@pytest.mark.parametrize(
    "told",
    [
        {"model": "config.json"},
        {"model": "/etc/passwd"},
        {"model": "../secret.yaml"},
        {"cluster": "cluster.yaml"},
        {"cluster": "/etc/hosts"},
        {"cluster": "9999999x8xH100-SXM"},
        {"model": "x" * 5000},
        {"tokens": "1e9" * 500},
        {"global_batch": 0},
        {"precision": "int3"},
    ],
)
def test_what_is_no_name_is_refused_and_no_file_is_read(
    told: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("config.json", "cluster.yaml"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    with pytest.raises(SpecError):
        planned(request(**told))
