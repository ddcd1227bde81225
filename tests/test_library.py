"""The library in a notebook: what there is, with signatures; short texts, tables, frames, pictures."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright.plans.ranking import Ranking

JOB = {"global_batch": 8, "seq_len": 1024, "tokens": "1B"}


@pytest.fixture(scope="module")
def ranking() -> Ranking:
    model, cluster = shardwright.load_model("llama-3.2-1b"), shardwright.load_cluster("1x4xA100-SXM-80")
    return shardwright.plan(model, cluster, shardwright.make_job(**JOB))


def test_dir_shows_the_public_names_and_each_is_there() -> None:
    assert dir(shardwright) == sorted(shardwright.__all__)
    assert all(getattr(shardwright, name) is not None for name in shardwright.__all__)


@pytest.mark.parametrize("name", shardwright.__all__)
def test_every_public_name_has_a_docstring_and_a_signature(name: str) -> None:
    found = getattr(shardwright, name)
    assert inspect.isfunction(found) or inspect.isclass(found), "no module in a function's place"
    assert inspect.getdoc(found)
    assert "kwargs" not in inspect.signature(found).parameters


def test_the_contracts_commands_have_calls_of_their_names() -> None:
    for name in ("plan", "shop", "evaluate", "validate", "profile"):
        assert callable(getattr(shardwright, name)) and not inspect.ismodule(getattr(shardwright, name))
    script = "import shardwright, shardwright.plans, shardwright.validation; print(callable(shardwright.plan))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "True\n"


def test_results_print_in_a_few_lines(ranking: Ranking) -> None:
    assert len(repr(ranking).splitlines()) == len(ranking.plans) + 1
    for value in (ranking, ranking.best, ranking.best.model, shardwright.evaluate(ranking.best)):
        assert len(repr(value)) < 2000 and "llama" in repr(value) + repr(ranking.best)
    assert repr(ranking.best.model).startswith("<Model llama-3.2-1b: 1,235,814,400 parameters")
    assert ranking._repr_html_().count("<tr>") == len(ranking.plans) + 1
    best = ranking.best
    assert f"tensor {best.stages[0].tensor_parallel} × pipeline" in repr(best)


def test_what_fits_prints_a_line_a_way() -> None:
    cluster, job = shardwright.load_cluster("1x1xRTX3090"), shardwright.make_job(global_batch=1, seq_len=1024)
    found = shardwright.fit(shardwright.load_model("llama-3.2-1b"), cluster, job)
    first, *ways = repr(found).splitlines()
    assert first == "llama-3.2-1b on 1 RTX3090" and len(ways) == len(found.sizes)
    assert all(" of 24.0 GiB, fits with probability " in line for line in ways)


def test_names_in_place_of_what_they_stand_for_are_refused_with_what_makes_it() -> None:
    model, job = shardwright.load_model("llama-3.2-1b"), shardwright.make_job(**JOB)
    for arguments, said in (
        ((8, "1x4xA100-SXM-80", job), r"is no Model \(shardwright.load_model"),
        ((model, 8, job), r"is no Cluster \(shardwright.load_cluster"),
        ((model, shardwright.load_cluster("1x4xA100-SXM-80"), JOB), r"is no Job \(shardwright.make_job"),
    ):
        with pytest.raises(shardwright.SpecError, match=said):
            shardwright.plan(*arguments)
    with pytest.raises(shardwright.SpecError, match="is no Offers"):
        shardwright.shop(model, "1x4xA100-SXM-80", job)


def test_a_ranking_without_plans_prints_its_reason() -> None:
    model, cluster = shardwright.load_model("llama-3.1-405b"), shardwright.load_cluster("1x1xT4")
    empty = shardwright.plan(model, cluster, shardwright.make_job(**JOB | {"precision": "fp16"}))
    assert repr(empty) == "no plan: too little memory (`.infeasible`)"
    assert empty._repr_html_().startswith("<p>no plan: too little memory")
    with pytest.raises(LookupError):
        empty.save("nowhere.json")


def test_a_frame_has_a_row_a_plan_with_the_predicted_figures(ranking: Ranking) -> None:
    pytest.importorskip("pandas")
    frame = ranking.to_frame()
    assert list(frame["iteration_seconds"]) == [plan.prediction.iteration_seconds for plan in ranking.plans]  # type: ignore[union-attr]
    assert (frame["interval_low_seconds"] < frame["interval_high_seconds"]).all()


def test_a_ranking_saves_its_best_plan_and_draws_it(ranking: Ranking, tmp_path: Path) -> None:
    ranking.save(tmp_path / "plan.json")
    assert shardwright.load_plan(tmp_path / "plan.json") == ranking.best
    picture = shardwright.draw(ranking)
    assert picture._repr_svg_().startswith("<svg") and len(repr(picture)) < 200
    picture.save(tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_text() == shardwright.draw(ranking.best).svg


def test_a_plan_takes_what_the_command_line_takes() -> None:
    job = shardwright.make_job(**JOB)
    told: dict[str, Any] = {
        "pins": {"tp": 2, "recompute": ["none", "selective"]},
        "rules": ["$pp > 1"],
        "framework": "megatron",
    }
    best = shardwright.plan("llama-3.1-8b", "1x8xH100-SXM", job, top=1, **told).best
    (replica,) = best.replicas
    assert replica.stages[0].tensor_parallel == 2 and len(replica.stages) == 1
    wrongs: tuple[tuple[dict[str, Any], str], ...] = (
        ({"pins": {"tpx": 2}}, "there is no parameter 'tpx'"),
        ({"rules": ["$tp >"]}, "ends where a value should follow"),
        ({"pins": {"tp": 2}, "space": shardwright.Space(tp_per_type=True)}, "are given beside a space"),
    )
    for wrong, message in wrongs:
        with pytest.raises(shardwright.SpecError, match=message):
            shardwright.plan("llama-3.1-8b", "1x8xH100-SXM", job, **wrong)


ODD: tuple[Any, ...] = (None, 3, -1, 2.5, float("nan"), "x", "", [], [3], ["x"], {"tp": 8}, object(), True, b"x")
ARGUMENTS = (
    *("model", "cluster", "job", "pins", "rules", "framework", "frameworks", "exportable_to", "space"),
    *("sure", "top", "fit", "efficiency", "gap", "indifference", "longest"),
)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_no_value_of_an_argument_is_a_traceback(name: str) -> None:
    given = {"model": "llama-3.2-1b", "cluster": "1x1xA100-SXM-80", "job": shardwright.make_job(**JOB)}
    refused = 0
    for value in ODD:
        try:
            assert isinstance(shardwright.plan(**{**given, name: value}), Ranking)
        except shardwright.SpecError as error:
            assert all(problem.path and problem.hint for problem in error.problems) or name in ("model", "cluster")
            refused += 1
    assert refused


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"pins": {"tp": 2}}, {"pins": {"tp": [2]}}),
        ({"pins": {"tp": (1, 2)}}, {"pins": {"tp": {1, 2}}}),
        ({"pins": {"tp": (1, 2)}}, {"pins": {"tp": range(1, 3)}}),
        ({"rules": "$tp > 1"}, {"rules": ["$tp > 1"]}),
        ({"framework": "fsdp"}, {"frameworks": "fsdp"}),
        ({"framework": ["fsdp", "megatron"]}, {"frameworks": ["fsdp", "megatron"]}),
        ({"pins": None, "rules": None, "framework": None, "top": None, "fit": None}, {}),
    ],
)
def test_one_value_may_stand_for_several(one: dict[str, Any], other: dict[str, Any], ranking: Ranking) -> None:
    model, cluster, job = ranking.best.model, ranking.best.cluster, ranking.best.job
    plans = [shardwright.plan(model, cluster, job, **said).plans for said in (one, other)]
    assert plans[0] == plans[1]


def test_files_may_be_named_by_their_paths(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes: [{count: 1, gpu: A100-SXM-80, gpus: 1}]")
    found = shardwright.plan("llama-3.2-1b", file, shardwright.make_job(**JOB))
    assert found.best.cluster == shardwright.load_cluster(file)
