"""`shardwright train` from the command line: processes, checkpoints, metrics, and how a run ends."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from tests import warm
from tests.cli.running import refused
from tests.cli.running import run as run_here
from tests.cli.schemas import holds
from tests.nightly import nightly
from tests.runtime.commands import (
    children,
    command,
    make_folder,
    rank_process,
    rows,
    run,
    run_alone,
    run_ranks,
    started,
    waited,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("train"))


def test_numbers_that_would_spoil_a_run_are_refused(folder: Path) -> None:
    for option in ("--clip", "--warmup", "--keep"):
        told = ["train", folder / "single.json", "--data", folder / "c.bin", option, -1]
        assert f"{option}: -1 is below 0" in refused(run_here(list(map(str, told))))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seed", -1], "--seed: -1 is below 0"),
        (["--seed", 2**63], "--seed: 9.22337e+18 is not below 2^63"),
        (["--learning-rate", "inf"], "--learning-rate: inf is not finite"),
        (["--clip", "nan"], "--clip: nan is not finite"),
        (["--patience", 1e9], "--patience: 1e+09 is more than a year"),
        (["--final-fraction", 2, "--decay", 9], "--final-fraction: 2 is above 1"),
        (["--schedule", "linear"], "--schedule: says nothing without --decay: the rate never falls"),
        (["--decay-from", 3], "--decay-from: says nothing without --decay"),
        (["--final-fraction", 0.5], "--final-fraction: says nothing without --decay"),
        (["--decay-from", 9, "--decay", 9], "--decay-from 9: is not before --decay 9"),
        (["--warmup", 20, "--decay", 9], "--warmup 20: is not before --decay 9"),
        (["--trace", "t.json", "--steps", 1], "--trace: measures from the second step on, and this run has 1"),
        (["--profile", "p.json", "--steps", 1], "add 1 to --steps"),
        (["--accept-change", "data"], "--accept-change: needs --resume"),
        *(
            ([f"--{what}", name], "is no name of a token file" if name else "is empty")
            for what in ("data", "eval-data")
            for name in ("", ".", "/")
        ),
        (["--data", "s3://bucket"], "'s3://bucket': is no name of a token file"),
        (["--out", __file__], f"--out {__file__}: is no folder to write in: File exists"),
    ],
)
def test_options_that_would_do_nothing_or_something_else_are_refused(
    folder: Path, arguments: list[object], words: str
) -> None:
    data = () if "--data" in arguments else ("--data", folder / "c.bin")
    more = ["train", folder / "single.json", *data, "--device", "cpu", *arguments]
    assert words in refused(run_here(list(map(str, more))))


def test_a_folder_of_weights_that_would_not_be_opened_is_refused_before_the_run(folder: Path, tmp_path: Path) -> None:
    """Transformers opens a single file before it looks for an index."""
    (tmp_path / "model.safetensors").touch()
    arguments = ["train", folder / "single.json", "--data", folder / "c.bin", "--device", "cpu", "--save-weights"]
    assert "which transformers would open in place of" in refused(run_here([*map(str, arguments), str(tmp_path)]))
    for path in (tmp_path / "model.safetensors", tmp_path / "model.safetensors" / "below"):
        assert "is no folder that can be written to" in refused(run_here([*map(str, arguments), str(path)]))


def test_held_out_tokens_of_another_tokenizer_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "e.bin").write_bytes((folder / "c.bin").read_bytes())
    header = json.loads((folder / "c.json").read_text())
    (tmp_path / "e.json").write_text(json.dumps(header | {"tokenizer": "another"}))
    arguments = [
        "train",
        folder / "single.json",
        "--data",
        folder / "c.bin",
        "--device",
        "cpu",
        "--eval-data",
        tmp_path / "e.bin",
    ]
    assert "has tokens of another" in refused(run_here(list(map(str, arguments))))
    (tmp_path / "e.json").write_text(json.dumps(header | {"end": "two"}))
    assert "e.json: is no header of a token file" in refused(run_here(list(map(str, arguments))))
    assert "c.json: is the name of a header" in refused(run_here(list(map(str, [*arguments[:3], folder / "c.json"]))))


def test_options_that_say_nothing_without_another_are_refused(folder: Path) -> None:
    told = ["train", folder / "single.json", "--data", folder / "c.bin"]
    for option, value, other in (("--eval-every", 3, "--eval-data"), ("--join", "a:1", "--elastic")):
        assert f"{option}: needs {other}" in refused(run_here(list(map(str, [*told, option, value]))))


def test_a_configuration_and_weights_that_are_not_there_are_told_before_the_run(folder: Path) -> None:
    told = ["train", folder / "single.json", "--data", folder / "c.bin", "--out", folder / "never", "--device", "cpu"]
    for option, words in (
        ("--config", "none.json: no such file"),
        ("--weights", "none.json/model.safetensors: cannot be"),
    ):
        assert words in refused(run_here(list(map(str, [*told, option, folder / "none.json"]))))


def test_a_profile_that_could_not_be_written_is_refused_before_the_run(folder: Path) -> None:
    told = ["train", folder / "single.json", "--data", folder / "c.bin", "--profile", folder / "none" / "a.json"]
    assert "lies in a folder that does not exist" in refused(run_here(list(map(str, told))))


def test_train_checkpoint_and_resume_under_another_plan(folder: Path) -> None:
    data, out, profile = folder / "c.bin", folder / "run", folder / "profile.json"
    told = ["--data", data, "--steps", 4, "--out", out, "--profile", profile, "--json"]
    more = ["--eval-data", data, "--eval-every", 3, "--logs", folder / "logs"]
    first = run(folder / "pair.json", *told, *more)
    assert first.returncode == 0, first.stderr
    document = json.loads(first.stdout)
    holds("training", document)
    assert document["held_out"] == {"step": 4, "loss": float(rows(out)[3]["held_out_loss"])}
    assert "[rank0]:step 4/4  loss " in first.stderr
    (log,) = (folder / "logs").glob("*/attempt_0/0/stderr.log")
    assert "step 4/4  loss " in log.read_text() and (log.parent.parent / "1" / "stderr.log").exists()
    assert (document["state"], document["step"], len(document["ranks"])) == ("finished", 4, 2)
    assert all(rank["busy_seconds"] > 0 and 0 <= rank["bubble"] < 1 for rank in document["ranks"])
    (entry,) = json.loads(profile.read_text())["entries"]
    assert len(entry["forward_seconds"]) == len(entry["backward_seconds"]) == 6
    assert min(entry["forward_seconds"] + entry["backward_seconds"]) > 0
    again = ["train", folder / "pair.json", "--data", data, "--steps", 9, "--out", out]
    assert "--resume" in refused(run_here(list(map(str, again))))
    weights = folder / "weights"
    arguments = ("--data", data, "--steps", 6, "--out", out, "--resume", out, "--save-weights", weights)
    second = run_alone(folder / "single.json", *arguments)
    assert second.returncode == 0, second.stderr
    assert "finished at step 6" in second.stdout
    assert [int(row["step"]) for row in rows(out)] == [1, 2, 3, 4, 5, 6]
    assert (weights / "model.safetensors.index.json").exists()
    exported = folder / "exported"
    told = list(map(str, ["checkpoint", "export", out, "--names", "huggingface", "-o", exported]))
    assert "add --plan PLAN" in refused(run_here(told))
    outcome = run_here([*told, "--plan", str(folder / "single.json")])
    if (weights / "config.json").exists():
        assert outcome.code == 0 and "step 6" in outcome.out
        assert (exported / "config.json").read_text() == (weights / "config.json").read_text()
    else:
        assert "no config.json is beside the weights" in second.stderr
        assert "config.json" in refused(outcome)


def test_too_few_processes_are_one_clear_message(folder: Path) -> None:
    done = run_ranks(1, 3, folder / "pair.json", "--data", folder / "c.bin", "--out", folder / "none")
    assert done.returncode == 2
    assert done.stderr.startswith("error: torchrun: the plan needs 2 processes, torchrun started 3")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGHUP, *nightly([signal.SIGTERM])])
def test_a_signal_ends_the_run_with_a_checkpoint(folder: Path, number: signal.Signals) -> None:
    out = folder / f"stopped-{number.name}"
    process = started(folder, out)
    process.send_signal(number)
    text, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "stopped at step" in text
    assert [path.name for path in out.glob("step-*")] == [f"step-{len(rows(out)):08d}"]


@pytest.mark.nightly
def test_a_run_whose_terminal_closes_ends_with_a_checkpoint(folder: Path) -> None:
    """Ranks are in sessions of their own: they only find that nobody reads what they print."""
    out, words = folder / "closed", command(folder / "single.json", "--data", folder / "c.bin", "--steps", 100_000)
    process, terminal = pty.fork()
    if not process:
        os.execv(words[0], [*words, "--out", str(out)])
    threading.Thread(target=_drained, args=(terminal,), daemon=True).start()
    assert waited(lambda: (out / "metrics.csv").exists() and len(rows(out)) > 2, 120)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert [path.name for path in out.glob("step-*")] == [f"step-{len(rows(out)):08d}"]


def _drained(terminal: int) -> None:
    with suppress(OSError):
        while os.read(terminal, 4096):
            pass


@pytest.mark.nightly
def test_a_run_under_nohup_outlives_its_terminal(folder: Path) -> None:
    out = folder / "nohup"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = started(folder, out, plan="single")
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    step = len(rows(out))
    assert waited(lambda: len(rows(out)) > step + 5, 60)
    process.kill()
    process.communicate()


def test_a_rank_out_of_memory_ends_all_at_once_with_its_message(folder: Path, tmp_path: Path) -> None:
    """Nobody waits for the patience, which is ten minutes here: the rank is not lost, and no neighbour of it is."""
    (tmp_path / "out of memory").touch()
    deaths = Path(__file__).parent / "recovery" / "deaths"
    more = {"DEATHS": str(tmp_path), "PYTHONPATH": f"{deaths}:{os.environ.get('PYTHONPATH', '')}"}
    words = command(folder / "pair.json", "--data", folder / "c.bin", "--out", tmp_path / "out", "--patience", 600)
    with warm.programs():
        done = subprocess.run(words, env=os.environ | more, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert done.stderr.count(" failed: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB") == 1
    assert "no sign of life" not in done.stderr


def test_a_killed_rank_is_named(folder: Path) -> None:
    process = started(folder, folder / "killed")
    os.kill(rank_process(children(process), 1), signal.SIGKILL)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "error: rank 1 (replica 0.0, stage 1, tp 0) was killed by SIGKILL" in errors


def test_a_hung_rank_is_named(folder: Path) -> None:
    process = started(folder, folder / "hung", patience=4)
    assert waited(lambda: len(rows(folder / "hung")) > 20, 60)
    stopped = rank_process(children(process), 1)
    os.kill(stopped, signal.SIGSTOP)
    assert process.stderr is not None
    found = next(line for line in process.stderr if line.startswith("error: "))
    os.kill(stopped, signal.SIGKILL)  # the launcher would, after half a minute
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert found.startswith("error: rank 1 (replica 0.0, stage 1, tp 0) has given no sign of life for ")
    assert "last seen computing" in found or "last seen waiting" in found or "last seen updating" in found
    assert int(found.rpartition("step ")[2]) > 1, "the last sign is fresh"
