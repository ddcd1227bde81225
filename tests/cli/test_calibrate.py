"""`shardwright calibrate` from a log to a plan that it moved, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from tests.cli.running import answered, refused, run, succeeded

from shardwright.reports.documents.schemas import document_schema

LOG = Path(__file__).parents[1] / "runs" / "data" / "titan-8b.log"
QUESTION = ("--model", "llama-3.1-8b", "--cluster", "1x8xH100-SXM", "--global-batch", "8", "--seq-len", "8192")
PINS = ("--framework", "torchtitan", "--set", "tp=1", "--set", "cp=1", "--set", "pp=1", "--set", "micro_batch=1")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plan that the log ran, and the calibration on it."""
    folder = tmp_path_factory.mktemp("site")
    assert run(["plan", *QUESTION, *PINS, "-o", str(folder / "ran.json")]).code == 0
    outcome = succeeded(["calibrate", str(LOG), "--plan", str(folder / "ran.json"), "-o", str(folder / "site.json")])
    (folder / "screen.txt").write_text(outcome.out, encoding="utf-8")
    return folder


def test_a_log_and_its_plan_make_a_calibration(site: Path) -> None:
    screen = (site / "screen.txt").read_text(encoding="utf-8")
    assert "Calibrated on 1 run of llama (dense) on 8 H100-SXM with torchtitan." in screen
    assert "1.167 s an iteration" in screen and "left out: 1 warm-up" in screen
    assert "plans on several machines: refused" in screen and "mixtures of experts" in screen
    document = json.loads((site / "site.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, document_schema("calibration"))
    (row,) = document["runs"]
    assert row["measured_seconds"] == pytest.approx(1.16679, rel=1e-4)


def test_a_plan_says_what_the_calibration_did(site: Path) -> None:
    outcome = run(["plan", *QUESTION, *PINS, "--calibration", str(site / "site.json")])
    assert outcome.code == 0 and "calibrated on 1 run of yours: +" in outcome.out
    plain = answered(["plan", *QUESTION, *PINS, "--json"])["plans"][0]["prediction"]
    moved = answered(["plan", *QUESTION, *PINS, "--calibration", str(site / "site.json"), "--json"])
    moved = moved["plans"][0]["prediction"]
    assert moved["iteration_seconds"] == pytest.approx(moved["site"]["factor"] * plain["iteration_seconds"])
    assert 1.05 < moved["site"]["factor"] < 1.25


def test_two_machines_are_not_moved_by_one(site: Path) -> None:
    question = [{"1x8xH100-SXM": "2x8xH100-SXM", "8": "16"}.get(word, word) for word in QUESTION]
    outcome = run(["plan", *question, *PINS, "--calibration", str(site / "site.json")])
    assert outcome.code == 0 and "not calibrated: its runs stayed within one machine" in " ".join(outcome.out.split())


def test_an_evaluation_says_it_too(site: Path) -> None:
    outcome = run(["evaluate", str(site / "ran.json"), "--calibration", str(site / "site.json"), "--set", "tp=1"])
    assert outcome.code == 0 and "calibrated on 1 run of yours" in outcome.out


def test_the_document_has_a_schema(site: Path) -> None:
    outcome = run(["calibrate", str(LOG), "--plan", str(site / "ran.json"), "-o", str(site / "again.json"), "--json"])
    document = json.loads(outcome.out)
    jsonschema.validate(document, document_schema("calibrate"))
    assert document["read"][str(LOG)]["left_out"] == {"warm-up": 1}
    assert (site / "again.json").read_bytes() == (site / "site.json").read_bytes()


def test_a_table_of_runs_needs_no_plan(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(
        "model,n_params,layers,hidden,ffn,heads,kv_heads,vocab,seq_len,gpu,gpus_per_node,n_gpus,precision,framework,tp,pp,"
        "micro_batch,global_batch,recompute,measured_iter_time_s\n"
        "llama-3.1-8b,8e9,32,4096,14336,32,8,128256,4096,H100-SXM,8,16,bf16,megatron,2,1,1,64,none,2.3\n"
        "llama-3.1-8b,8e9,32,4096,14336,32,8,128256,4096,H100-SXM,8,16,bf16,megatron,2,2,1,64,none,2.4\n"
    )
    outcome = succeeded(["calibrate", str(table), "-o", str(tmp_path / "site.json"), "--anonymous"])
    assert (
        "Calibrated on 2 runs of" in outcome.out and "median error of each run predicted by the others" in outcome.out
    )
    assert "llama-3.1-8b" not in (tmp_path / "site.json").read_text()


def test_what_is_refused(site: Path, tmp_path: Path) -> None:
    out = ("-o", str(tmp_path / "out.json"))
    ran = str(site / "ran.json")
    assert "does not say what it ran" in refused(run(["calibrate", str(LOG), *out]))
    assert "no such file" in refused(run(["calibrate", str(tmp_path / "none.log"), "--plan", ran, *out]))
    assert "2 for 1 runs" in refused(run(["calibrate", str(LOG), "--plan", ran, "--plan", ran, *out]))
    assert "cannot stand beside --plan" in refused(
        run(["calibrate", str(LOG), "--plan", ran, "--launch", str(LOG), *out])
    )
    assert "--cluster" in refused(run(["calibrate", str(LOG), "--launch", str(LOG), *out]))
    other = tmp_path / "other.json"
    assert run(["plan", *QUESTION[:4], "--global-batch", "16", "--seq-len", "8192", *PINS, "-o", str(other)]).code == 0
    text = refused(run(["calibrate", str(LOG), "--plan", str(other), *out]))
    assert "line 3: says global batch 8, its plan 16" in text
    assert "is an input" in refused(run(["calibrate", str(LOG), "--plan", ran, "-o", ran]))
    assert not (tmp_path / "out.json").exists()
    text = refused(run(["plan", *QUESTION, "--calibration", ran]))
    assert "is no calibration" in text
    assert "--programs" in refused(run(["plan", *QUESTION, "--programs", "--calibration", str(site / "site.json")]))
