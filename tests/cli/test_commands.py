"""The commands from end to end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.running import answered, refused, run, succeeded

SMALL = ["--model", "llama-3.2-1b", "--global-batch", "32", "--seq-len", "2048"]
PLAN = ["plan", *SMALL, "--cluster", "1x8xA100-SXM-80"]


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert run([*PLAN, "--out", str(path)]).code == 0
    return path


def test_a_real_process_prints_a_report() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shardwright", *PLAN, "--details"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for words in ("llama-3.2-1b", "Memory of one GPU", "What an expert would try", "candidates", "Assumed", "an hour"):
        assert words in done.stdout


def test_json_is_one_document_with_the_promised_keys() -> None:
    document = answered([*PLAN, "--tokens", "1B", "--json"])
    assert set(document) >= {"plans", "search"}
    assert set(document["search"]) >= {"candidates", "seconds", "rejected"}
    best = document["plans"][0]
    assert best["version"] == 2
    assert best["job"]["global_batch"] == 32
    for key in ("iteration_seconds", "interval", "tokens_per_second", "mfu", "memory_bytes", "fit_probability",
                "dollars_per_hour", "dollars_total", "lower_bound_seconds"):  # fmt: skip
        assert best["prediction"][key] is not None
    stage = best["replicas"][0]["stages"][0]
    assert {"gpu", "tensor_parallel", "context_parallel", "expert_parallel", "layers", "recompute"} <= set(stage)
    times = [plan["prediction"]["iteration_seconds"] for plan in document["plans"]]
    assert times == sorted(times)


def test_infeasible_is_exit_3_with_a_reason_and_remedies() -> None:
    job = ["--global-batch", "8", "--seq-len", "4096"]
    arguments = ["plan", "--model", "llama-2-13b", "--cluster", "1x2xA100-SXM-40", *job]
    outcome = run(arguments)
    assert outcome.code == 3
    assert "would do" in outcome.out
    document = json.loads(run([*arguments, "--json"]).out)
    assert document["plans"] == []
    assert document["infeasible"]["remedies"]


def test_evaluate_explains_the_difference(plan_file: Path, tmp_path: Path) -> None:
    document = json.loads(plan_file.read_text())
    document["overlap"]["grad_reduce"] = document["overlap"]["param_gather"] = False
    for stage in document["replicas"][0]["stages"]:
        stage["recompute"] = {"granularity": "full", "method": "uniform", "layers": 1}
    slower = tmp_path / "slower.json"
    slower.write_text(json.dumps(document))
    outcome = succeeded(["evaluate", str(slower)])
    assert "recomputation" in outcome.out
    assert "less time" in outcome.out
    found = answered(["evaluate", str(slower), "--json"])
    assert found["plan"]["prediction"]["iteration_seconds"] > found["best"]["prediction"]["iteration_seconds"]
    assert found["differences"]


def test_a_measured_step_scales_the_ladder_and_the_best_plan_is_written(plan_file: Path, tmp_path: Path) -> None:
    document = json.loads(plan_file.read_text())
    for stage in document["replicas"][0]["stages"]:
        stage["recompute"] = {"granularity": "full", "method": "uniform", "layers": 1}
    mine, best = tmp_path / "mine.json", tmp_path / "best.json"
    mine.write_text(json.dumps(document))
    found = answered(["evaluate", str(mine), "--json", "--out", str(best)])
    predicted = found["plan"]["prediction"]["iteration_seconds"]
    assert json.loads(best.read_text())["replicas"] == found["best"]["replicas"]
    plain = run(["evaluate", str(mine)])
    scaled = run(["evaluate", str(mine), "--measured", f"{2 * predicted:.9g}s"])
    assert plain.code == scaled.code == 0, scaled.err
    steps = [re.findall(r"^ +([\d.]+) m?s +[\d.]+ [GM]iB", outcome.out, re.M) for outcome in (plain, scaled)]
    assert len(steps[0]) > 1
    assert [float(after) for after in steps[1]] == pytest.approx([2 * float(before) for before in steps[0]], rel=1e-3)
    assert "+100.0%" in scaled.out and "You measured" not in plain.out
    for wrong in ("soon", "0s", "-3"):
        assert "--measured 15.6s" in refused(run(["evaluate", str(mine), "--measured", wrong]))


def test_export_and_back_through_megatron_arguments(plan_file: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    assert run(["export", str(plan_file), "--to", "megatron", "-o", str(script)]).code == 0
    assert "--tensor-model-parallel-size" in script.read_text()
    back = answered(["evaluate", "--megatron-args", str(script), "--cluster", "1x8xA100-SXM-80", "--json"])
    mine, plan = back["plan"], json.loads(plan_file.read_text())
    assert mine["replicas"] == plan["replicas"]
    assert mine["prediction"]["iteration_seconds"] == pytest.approx(plan["prediction"]["iteration_seconds"], rel=1e-9)


def test_what_a_target_cannot_express_is_refused_by_name() -> None:
    arguments = [
        "plan",
        "--model",
        "gemma-2-2b",
        "--cluster",
        "1x8xA100-SXM-80",
        "--global-batch",
        "32",
        "--seq-len",
        "2048",
    ]
    done = run([*arguments, "--exportable-to", "megatron"])
    assert done.code == 3 and "norms" in done.out


def test_plans_are_equal_byte_for_byte(plan_file: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    assert run([*PLAN, "--out", str(again)]).code == 0
    assert again.read_bytes() == plan_file.read_bytes()


def test_own_prices_go_before_the_catalogue(tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("gpu,gpus,on_demand_per_hour,source,date\nA100-SXM-80,8,12.5,contract,2026-11\n")
    document = answered([*PLAN, "--prices", str(prices), "--json"])
    assert document["plans"][0]["prediction"]["dollars_per_hour"] == 12.5


def test_rules_from_a_file(tmp_path: Path) -> None:
    rules = tmp_path / "rules.txt"
    rules.write_text("no recomputation: $recompute_granularity != none\nno tp: $tp > 1\n")
    document = answered([*PLAN, "--rules", str(rules), "--json"])
    assert any(entry["kind"] == "rule" and entry["rule"] == "no tp" for entry in document["search"]["rejected"])
    assert all(plan["replicas"][0]["stages"][0]["tensor_parallel"] == 1 for plan in document["plans"])


@pytest.mark.parametrize("arguments", [["gpus"], ["models"], ["prices", "--gpu", "H100-SXM"]])
def test_the_catalogue(arguments: list[str]) -> None:
    text, document = run(arguments), run([*arguments, "--json"])
    assert text.code == document.code == 0
    assert len(json.loads(document.out)) + 2 == len(text.out.splitlines())


def test_one_of_the_catalogue() -> None:
    assert "989" in run(["gpus", "H100-SXM"]).out
    assert "8,030,261,248" in run(["models", "llama-3.1-8b"]).out


def test_check_lists_every_violation(plan_file: Path, tmp_path: Path) -> None:
    assert run(["check", str(plan_file)]).code == 0
    document = json.loads(plan_file.read_text())
    document["micro_batch"] *= 3
    document["optimizer"]["offload"] = 2.0
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(document))
    assert len(refused(run(["check", str(broken)])).splitlines()) >= 2


@pytest.mark.parametrize("command", ["plan", "evaluate", "export", "check", "gpus", "models", "prices"])
def test_help_teaches(command: str) -> None:
    outcome = succeeded([command, "--help"])
    assert "shardwright " + command in outcome.out


def test_version() -> None:
    assert run(["--version"]).out.startswith("shardwright 0.")
    versions = answered(["--version", "--json"])
    assert versions["packages"]["numpy"] and set(versions) >= {"shardwright", "commit", "python", "platform"}


def test_a_price_that_nobody_lists_is_said_to_be_none() -> None:
    done = run(["prices", "--gpu", "RTX3090", "--region", "us-east-1"])
    assert done.code == 0 and "no such price" in done.err and "--prices FILE" in done.err
