"""Logs of many trainers against figures written by hand: `data/expected.csv` names for each the source of its format."""

from __future__ import annotations

import csv
import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from shardwright import SpecError, good_state, read_run

DATA = Path(__file__).parent / "data"
EXPECTED = tuple(csv.DictReader((DATA / "expected.csv").read_text(encoding="utf-8").splitlines()))


def test_there_are_logs_of_nine_trainers_and_more() -> None:
    trainers = {row["trainer"] for row in EXPECTED}
    assert len(EXPECTED) >= 40 and {row["file"] for row in EXPECTED} == {path.name for path in DATA.iterdir()} - {
        "expected.csv"
    }
    assert trainers >= {
        "megatron",
        "megatron-bridge",
        "nemo",
        "torchtitan",
        "deepspeed",
        "transformers",
        "trl",
        "axolotl",
        "nanotron",
        "train",
        "mlperf",
    }
    assert all(row["source"] for row in EXPECTED)


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: row["file"])
def test_a_log_is_read_as_written_by_hand(row: dict[str, str]) -> None:
    asked = {
        name: int(row[key])
        for name, key in (("global_batch", "ask_batch"), ("seq_len", "ask_seq"), ("gpus", "ask_gpus"))
        if row[key]
    }
    run = read_run(DATA / row["file"], **asked)
    state = good_state(run)
    assert (run.trainer, len(run.steps)) == (row["trainer"], int(row["rows"]))
    assert state.seconds == pytest.approx(float(row["seconds"]), rel=2e-4)
    left = "; ".join(f"{name} {out.steps}" for name, out in state.left_out.items())
    assert left == row["left_out"]
    for name in ("global_batch", "micro_batch", "seq_len", "gpus", "tp", "pp"):
        if row[name]:
            assert getattr(run.setting, name) == int(row[name]), name
    if row["gpu"]:
        assert run.setting.gpu == row["gpu"]
    if row["memory_gib"]:
        assert np.nanmax(run.steps.memory_bytes) / 2**30 == pytest.approx(float(row["memory_gib"]), rel=1e-3)
    if row["tflops"]:
        assert run.steps.gpu_tflops[-1] == float(row["tflops"])
    if row["covers"]:
        assert set(run.steps.covers[1:]) == {int(row["covers"])}
    assert sum(event.kind == "restart" for event in run.events) == int(row["restarts"] or 0)
    if row["bad_share"]:
        assert state.bad_share == pytest.approx(float(row["bad_share"]), rel=1e-3)
    if row["timer"]:
        name, seconds = row["timer"].split()
        assert [timer.least_seconds for timer in run.timers if timer.name == name] == [pytest.approx(float(seconds))]
    assert row["note"] in " ".join(run.notes)


MEGATRON = " iteration {:8d}/   10000 | consumed samples: 256 | elapsed time per iteration (ms): {:.1f} | global batch size:   256 | lm loss: 8.0E+00 |\n"


def log_of(folder: Path, text: str) -> Path:
    file = folder / "run.log"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no line tells of a step"),
        ("Traceback (most recent call last):\n  File 'x.py'\n", "no line tells of a step"),
        (
            MEGATRON.format(1, 2000.0)
            + " iteration        2/ 100 | elapsed time per iteration (ms): | lm loss: 8.0 |\n",
            "line 2: is a step of megatron with no seconds",
        ),
        ("elapsed time per iteration (ms): 2000.0 |\n", "line 1: is a step of megatron with no step"),
        (
            "Training epoch 0, iteration 3/99 | global_step: 3 | train_step_timing in s: nan\n",
            "line 1: is a step of nemo with no seconds",
        ),
        (
            "a\nb\nsteps: x1 loss: 5.0 iter time (s): 2.0\nsteps: 10 loss: 5.0 iter time (s): fast samples/sec: 3\n",
            "line 4: is a step of deepspeed with no seconds",
        ),
        (
            "iteration: 1 / 20 | elapsed_time_per_iteration_ms: --- | lm_loss: 11.1\n",
            "line 1: is a step of nanotron with no seconds",
        ),
        (
            "[INFO] epoch=0/micro_step=1/global_step=1, RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec=inf, MemAllocated=1GB\n",
            "line 1: is a step of deepspeed with no samples per second",
        ),
        ('x\n:::MLLOG {"namespace": "", "time_ms": 12, "key"\n', "line 2: is no JSON object after :::MLLOG"),
        (
            '{"current_steps": 10, "total_steps": 500, "elapsed_time": "soon"}\n',
            "line 1: is a step of llama-factory with no clock",
        ),
        (
            "step:  1  loss:  8.0  memory: 33.11GiB(74.54%)  tps: many  mfu: 1%\n",
            "line 1: is a step of torchtitan with no gpu tokens per second",
        ),
    ],
)
def test_malformed_logs_are_refused_by_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_run(log_of(tmp_path, text))
    assert words in str(caught.value)


def test_one_garbled_line_of_many_is_left_out_and_said(tmp_path: Path) -> None:
    """Processes that write at once tear lines apart; a whole log is not lost for it."""
    lines = [MEGATRON.format(step, 2000.0) for step in range(1, 301)]
    lines[150] = " iteration      15Loading shards | elapsed time per iteration (ms): 20 iteration\n"
    run = read_run(log_of(tmp_path, "".join(lines)))
    assert len(run.steps) == 299 and run.notes == ("1 garbled lines are left out: 151",)
    assert good_state(run).seconds == 2.0


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(np.random.default_rng(1).bytes(300_000))
    with pytest.raises(SpecError, match="no line tells of a step"):
        read_run(file)
    with pytest.raises(SpecError, match="no such file"):
        read_run(tmp_path / "none.log")
    with pytest.raises(SpecError, match="is a folder without"):
        read_run(tmp_path)


def test_a_packed_log_reads_like_the_log(tmp_path: Path) -> None:
    source = DATA / "megatron-core.log"
    packed = tmp_path / "run.log.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    assert good_state(read_run(packed)).seconds == good_state(read_run(source)).seconds


def test_a_bar_without_an_end_of_line_takes_bounded_memory(tmp_path: Path) -> None:
    """A progress bar of 2 MB on one line, and 4 MB of other output: what is kept is a row a window."""
    file = tmp_path / "run.log"
    with file.open("w", encoding="utf-8") as stream:
        for step in range(1, 20_001):
            stream.write(
                f"\r 10%|█         | {step}/20000 [{step * 3 // 3600}:{step * 3 // 60 % 60:02d}:{step * 3 % 60:02d}<9:10:11,  3.00s/it]"
                + " " * 30
            )
        stream.write("\n" + ("x" * 200 + "\n") * 20_000)
    tracemalloc.start()
    run = read_run(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert good_state(run).seconds == pytest.approx(3.0) and len(run.steps) > 6_000
    assert peak < 8e6


@pytest.mark.nightly
def test_a_log_of_500_megabytes_takes_bounded_memory(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    with file.open("w", encoding="utf-8") as stream:
        for step in range(1, 400_001):
            stream.write(
                MEGATRON.format(step, 2000.0 + step % 7)
                + ("some other output of a library, of no meaning here " * 22 + "\n")
            )
    assert file.stat().st_size > 480e6
    tracemalloc.start()
    run = read_run(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(run.steps) == 400_000 and peak < 150e6
