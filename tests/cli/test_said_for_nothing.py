"""An option that is taken moves the answer, in text and in JSON, or it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.running import refused, run, succeeded

LINE = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --global-batch-size 64 --bf16 --num-layers 12 --hidden-size 768 "
    "--num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50304 --micro-batch-size 4"
)
WHERE = ["--launch", "run.sh", "--cluster", "1x8xA100-SXM-80"]
STEP = "iteration {0}/ 100 | consumed samples: {1} | elapsed time per iteration (ms): 900.0 | global batch size: 64 | lm loss: 2.0\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(LINE, encoding="utf-8")
    Path("train.log").write_text("".join(STEP.format(n, 64 * n) for n in range(1, 40)), encoding="utf-8")
    Path("book.json").write_text("a text", encoding="utf-8")
    question = ["--model", "gpt2", "--cluster", "1x2xA100-SXM-40", "--global-batch", "8", "--seq-len", "512"]
    succeeded(["plan", *question, "--out", "plan.json"])


@pytest.mark.parametrize("json", [[], ["--json"]])
@pytest.mark.parametrize(
    ("base", "option"),
    [
        (["evaluate", *WHERE], ["--measured", "30s"]),
        (["evaluate", "plan.json"], ["--measured", "30s"]),
        (["evaluate", *WHERE], ["--set", "tp=4"]),
        (["export", "plan.json", "--to", "megatron"], ["--launcher", "slurm"]),
        (["fit", "gpt2", "--gpu", "RTX3090"], ["--gpus", "2"]),
        (["fit", "gpt2", "--gpu", "RTX3090"], ["--nodes", "2"]),
        (["simulate-spot", "plan.json", "--market", "calm", "--days", "0.05"], ["--seed", "3"]),
    ],
)
def test_what_is_taken_moves_the_answer(base: list[str], option: list[str], json: list[str]) -> None:
    assert succeeded([*base, *option, *json]).out != succeeded([*base, *json]).out


def test_measured_seconds_scale_the_ladder_of_the_document() -> None:
    from tests.cli.running import answered

    plain = answered(["evaluate", *WHERE, "--json"])
    scaled = answered(["evaluate", *WHERE, "--measured", "30s", "--json"])
    ratio = scaled["measured"]["times_the_predicted"]
    assert plain["measured"] is None and not scaled["measured"]["within_interval"] and plain["ladder"]
    for before, after in zip(plain["ladder"], scaled["ladder"], strict=True):
        assert after["seconds"] == pytest.approx(ratio * before["seconds"])
        assert before["seconds"] == before["plan"]["prediction"]["iteration_seconds"]


SPOT = ["simulate-spot", "plan.json", "--trace", "trace.csv"]
EXPORTS = ("bridge", "torchtitan", "accelerate", "deepspeed", "skypilot", "kubernetes", "perfetto")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["fit", "gpt2", "--cluster", "1x1xRTX3090", "--gpus", "8"], "--gpus: the cluster says"),
        (["fit", "gpt2", "--cluster", "1x1xRTX3090", "--nodes", "1"], "--nodes: the cluster says"),
        ([*SPOT, "--days", "3"], "--days: is of a trace that is made"),
        ([*SPOT, "--zones", "2"], "--zones: is of a trace that is made"),
        ([*SPOT, "--save-trace", "copy.csv"], "--save-trace: is of a trace that is made"),
        (["calibrate", "train.log", "--plan", "plan.json", "--cluster", "1x8xT4", "-o", "s.json"], "goes with --launch"),
        (["calibrate", "train.log", "--plan", "plan.json", "--seq-len", "99", "-o", "s.json"], "goes with --launch"),
        (["plan", "--model", "gpt2", "--cluster", "1x2xT4", "--global-batch", "8", "--precision", ""], "is empty"),
        (["evaluate", "plan.json", "--measured", ""], "is empty"),
        (["evaluate", "plan.json", "--set", ""], "is empty"),
        (["train", "plan.json", "--data", "none.bin", "--dry-run"], "none.bin: has no header"),
        (["tokens", "book.json", "-o", "missing/x.bin"], "lies in a folder that does not exist"),
        (["tokens", "book.json", "-o", "book.bin"], "book.json: is an input"),
        *((["export", "plan.json", "--to", to, "--launcher", "slurm"], "is for megatron alone") for to in EXPORTS),
    ],
)  # fmt: skip
def test_what_would_move_nothing_is_refused(command: list[str], words: str) -> None:
    assert words in refused(run(command))
    assert Path("book.json").read_text(encoding="utf-8") == "a text"


def test_a_plan_beside_a_run_that_has_its_own_is_refused() -> None:
    Path("run").mkdir()
    Path("plan.json").rename("run/plan.json")
    command = ["calibrate", "run", "--launch", "run.sh", "--cluster", "1x8xA100-SXM-80", "-o", "site.json"]
    assert "each run has its own plan" in refused(run(command))


@pytest.mark.parametrize(("option", "value"), [("--tokens", "0.5"), ("--tokens", "4095"), ("--steps", "0.5")])
def test_a_run_is_a_step_at_least(option: str, value: str) -> None:
    question = ["plan", "--model", "gpt2", "--cluster", "1x2xA100-SXM-40", "--global-batch", "8", "--seq-len", "512"]
    assert "are less than a step, which takes 4,096" in refused(run([*question, option, value]))
    assert succeeded([*question, "--steps", "1"]).out


def test_what_a_command_printed_is_no_plan_file_and_a_plan_file_is_no_launch() -> None:
    question = ["plan", "--model", "gpt2", "--cluster", "1x2xA100-SXM-40", "--global-batch", "8", "--seq-len", "512"]
    Path("ranking.json").write_text(succeeded([*question, "--json"]).out, encoding="utf-8")
    Path("checked.json").write_text(succeeded(["check", "plan.json", "--json"]).out, encoding="utf-8")
    for command in ("evaluate", "check", "draw", "export --to megatron"):
        name, *more = command.split()
        assert "is what a command printed, not a plan file" in refused(run([name, "ranking.json", *more]))
    assert "is a plan file, not a launch" in refused(run(["evaluate", "--launch", "plan.json", *WHERE[2:]]))
    assert "has no page" in refused(run(["report", "checked.json", "-o", "page.html"]))
    assert succeeded(["report", "ranking.json", "-o", "page.html"]).code == 0


def test_a_page_that_cannot_have_a_profile_or_fewer_machines_refuses_them() -> None:
    Path("evaluation.json").write_text(succeeded(["evaluate", "plan.json", "--json"]).out, encoding="utf-8")
    page = ["report", "evaluation.json", "-o", "page.html"]
    assert "--profile: goes with plan files" in refused(run([*page, "--profile", "missing.json"]))
    assert "--fewer: is of one plan" in refused(run([*page, "--fewer"]))
    assert "--fewer: is of one plan" in refused(run(["report", "plan.json", "plan.json", "--fewer", "-o", "page.html"]))
