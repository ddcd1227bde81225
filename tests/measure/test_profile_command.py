"""`shardwright profile` from end to end on this machine's CPU, interrupted, resumed and planned with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests import warm
from tests.cli.running import answered, refused, run, succeeded
from tests.cli.schemas import holds
from tests.measure.samples import few_rows
from tests.signals import interruptible

pytest.importorskip("torch")

from shardwright.cli.profile import reporter
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.measured.machine import base_seconds, profiled
from shardwright.errors import SpecError
from shardwright.measure.collectives import measured
from shardwright.measure.device import Call, MeasuredDevice, cluster_fragment, find_device, sustained, timing
from shardwright.measure.operators import CALLS, gemm_calls, memory_calls
from shardwright.measure.run import MeasureProgress, measure, partial_path
from shardwright.spec.read.cluster import build_cluster, load_cluster
from shardwright.spec.read.machine_profile import CollectiveTime, OperatorTime, load_profile, save_profile

QUICK = ["profile", "--device", "cpu", "--minutes", "0.01", "--no-links"]
JOB = ["--global-batch", "8", "--seq-len", "128", "--precision", "fp32"]
MODEL = "{name: tiny, hidden: 256, layers: 4, heads: 4, ffn: 1024, vocab: 2048}"
HELD_OUT = ((192, 320, 256), (384, 128, 512), (256, 448, 320), (320, 320, 320), (128, 640, 256))
WITHIN = 3.0  # the machine may be busy with other things while one of the two is measured


@pytest.fixture(scope="module")
def profile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "cpu.json"
    outcome = succeeded([*QUICK, "--gpu", "this cpu", "-o", str(path), "--json"])
    document = json.loads(outcome.out)
    assert document["gpu"] == "this cpu"
    holds("measurement", document)
    assert {(item["kind"], item["dtype"]) for item in document["operators"]} == {
        (kind, dtype) for kind in ("gemm", "attention", "memory") for dtype in ("fp32", "bf16")
    }
    assert "measured" in outcome.err
    (path.parent / "cluster.json").write_text(json.dumps(document["cluster"]))
    return path


def test_the_profile_is_whole_and_nothing_else_is_left(profile_file: Path) -> None:
    profile = load_profile(profile_file)
    assert profile.complete
    assert not partial_path(profile_file).exists()
    assert {row.direction for row in profile.operators} == {"forward", "backward", "dgrad", "wgrad"}
    assert all(row.seconds > 0 for row in profile.operators)
    assert profile.gpu.peak("fp32") == pytest.approx(
        max(2.0 * row.m * row.n * row.k * row.groups / row.seconds for row in profile.operators if row.dtype == "fp32")
    )


def test_the_printed_cluster_file_can_be_planned_with_the_profile(profile_file: Path) -> None:
    cluster, model = str(profile_file.parent / "cluster.json"), profile_file.parent / "tiny.yaml"
    model.write_text(MODEL)
    arguments = ["plan", *JOB, "--model", str(model), "--cluster", cluster]
    plain = run([*arguments, "--json"])
    outcome = run([*arguments, "--machine-profile", str(profile_file), "--json", "--out", f"{cluster}.plan"])
    assert outcome.code == plain.code == 0, outcome.err
    seconds = [json.loads(text)["plans"][0]["prediction"]["iteration_seconds"] for text in (plain.out, outcome.out)]
    assert seconds[0] != seconds[1]
    again = answered(["evaluate", f"{cluster}.plan", "--machine-profile", str(profile_file), "--json"])
    prediction = again["plan"]["prediction"]
    assert prediction["iteration_seconds"] == pytest.approx(seconds[1], rel=1e-9)


def test_a_profile_of_another_machine_is_refused(profile_file: Path) -> None:
    arguments = ["plan", *JOB, "--model", "llama-3.2-1b", "--cluster", "1x8xA100-SXM-80"]
    arguments += ["--machine-profile", str(profile_file)]
    assert "is of this cpu" in refused(run(arguments))


@pytest.fixture
def one_row_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.measure.run.operator_rows", few_rows)


@pytest.mark.usefixtures("one_row_of_each")
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    out, device = tmp_path / "p.json", find_device("cpu", None)

    def interrupt(progress: MeasureProgress) -> None:
        if progress.done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(device, out, minutes=0.01, links=False, report=interrupt)
    assert not out.exists()
    kept = load_profile(partial_path(out))
    assert len(kept.operators) == 5
    assert not kept.complete
    seen = []
    whole = measure(device, out, minutes=30.0, links=False, report=lambda progress: seen.append(progress.done))
    assert seen[0] == 6
    assert whole.operators[:5] == kept.operators
    assert whole.row_seconds == kept.row_seconds
    assert len(whole.operators) == seen[-1] == len(set(whole.operators))


def test_sigint_leaves_what_was_measured(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    command = [sys.executable, "-m", "shardwright", "profile", "--device", "cpu", "--minutes", "2", "-o", str(out)]
    with interruptible(), warm.programs():
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (partial_path(out).exists() and load_profile(partial_path(out)).operators):
        assert process.poll() is None, "it measures on"
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate()
    assert process.returncode == 130
    assert "the same command goes on" in words
    assert "Traceback" not in words
    assert load_profile(partial_path(out)).operators
    assert not out.exists()


CANNOT = {
    "gemm forward bf16": RuntimeError,
    "gemm dgrad bf16": ValueError,
    "gemm wgrad bf16": NotImplementedError,
    "attention backward bf16": AttributeError,
}


@pytest.mark.usefixtures("one_row_of_each")
def test_rows_that_the_device_cannot_run_are_left_out_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever PyTorch raises there."""
    those = dict(CALLS)

    def calls(row: OperatorTime, device: MeasuredDevice) -> list[Call]:
        problem = CANNOT.get(f"{row.kind} {row.direction} {row.dtype}")
        if problem is not None:
            raise problem("no such kernel\nand much more")
        return those[row.kind](row, device)

    for kind in those:
        monkeypatch.setitem(CALLS, kind, calls)
    lines, show = [], reporter()

    def report(progress: MeasureProgress) -> None:
        lines.append((progress.done, progress.total))
        show(progress)

    found = measure(find_device("cpu", None), tmp_path / "p.json", minutes=0.01, links=False, report=report)
    assert found.complete
    assert {row.dtype for row in found.operators if row.kind == "gemm"} == {"fp32"}
    assert {row.dtype for row in found.operators if row.kind == "memory"} == {"fp32", "bf16"}
    assert {row.direction for row in found.operators if row.kind == "attention" and row.dtype == "bf16"} == {"forward"}
    assert [done for done, _ in lines] == list(range(1, lines[-1][1] + 1))
    shown = [line for line in capsys.readouterr().err.splitlines() if line.startswith("left out")]
    assert sorted(shown) == sorted(
        f"left out: {name}: {problem.__name__}: no such kernel" for name, problem in CANNOT.items()
    )


def test_a_device_that_cannot_multiply_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.measure.run.CALLS", {"gemm": lambda *_: (_ for _ in ()).throw(RuntimeError)})
    with pytest.raises(SpecError, match="cannot multiply"):
        measure(find_device("cpu", None), tmp_path / "q.json", minutes=0.01, links=False)


def test_a_terminal_sees_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    row = CollectiveTime(collective="send", ranks=2, bytes=2**20, seconds=1e-3)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    show = reporter()
    for done in (1, 2, 3, 4):
        show(MeasureProgress(done=done, total=4, row=row))
    shown = capsys.readouterr().err
    assert "[######..................] 1/4 send of 2, 1.0 MiB: 1 ms" in shown
    assert shown.endswith("\r\033[K")


@pytest.mark.nightly
def test_what_another_machine_left_is_not_gone_on_with(tmp_path: Path, profile_file: Path) -> None:
    out = tmp_path / "p.json"
    other = replace(load_profile(profile_file), device="another CPU", complete=False)
    save_profile(other, partial_path(out))
    assert "--restart" in refused(run([*QUICK, "-o", str(out)]))
    outcome = succeeded([*QUICK, "-o", str(out), "--restart"])
    for words in ("measured/predicted", "corrected", "gemm", "attention", "memory", '"nodes"', "--machine-profile"):
        assert words in outcome.out


def test_a_folder_that_is_not_there_is_told_before_measuring(tmp_path: Path) -> None:
    assert "cannot be written" in refused(run([*QUICK, "-o", str(tmp_path / "none" / "p.json")]))
    assert "--minutes" in refused(run(["profile", "--minutes", "0"]))


def test_collectives_are_measured_between_real_processes_which_fail_with_their_last_words() -> None:
    sizes = (2**16, 2**22)
    rows = [
        CollectiveTime(collective=collective, ranks=2, bytes=size, seconds=0.0)
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
        for size in sizes
    ]
    unknown = CollectiveTime(collective="reduce_everywhere", ranks=2, bytes=64, seconds=0.0)
    found: list[CollectiveTime] = []
    with warm.programs(), pytest.raises(SpecError, match="measuring collectives failed"):
        found.extend(measured([*rows, unknown], find_device("cpu", None), 0.01))
    assert [replace(row, seconds=0.0, spread=0.0) for row in found] == rows
    assert all(row.seconds > 0 for row in found)


@pytest.mark.nightly
def test_a_prediction_shifts_to_the_speed_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU measured as if it were an A100: shapes that were not measured come out within a factor, not thousands. Times
    are the processor's, which other work on the machine does not lengthen."""
    monkeypatch.setattr("shardwright.measure.device.time", SimpleNamespace(perf_counter=time.process_time))
    device = find_device("cpu", "A100-SXM-80")
    profile = measure(device, tmp_path / "p.json", minutes=0.05, links=False)
    cluster = load_cluster("1x8xA100-SXM-80")
    gpu, model = cluster.pools[0].gpu, profiled(Analytic(), [profile], cluster)
    rows = [
        OperatorTime(kind="gemm", direction="forward", dtype="bf16", seconds=0.0, m=m, n=n, k=k, groups=1)
        for m, n, k in HELD_OUT
    ]
    seconds = np.array([sustained(gemm_calls(row, device), device, 0.02).seconds for row in rows])
    before = seconds / base_seconds(Analytic(), gpu, rows)
    after = seconds / base_seconds(model, gpu, rows)
    assert np.median(before) > 2.0 * WITHIN  # else the profile would have nothing to shift
    assert 1.0 / WITHIN < np.median(after) < WITHIN


def test_a_cpu_cluster_has_the_measured_figures(profile_file: Path) -> None:
    profile = load_profile(profile_file)
    (pool,) = build_cluster(cluster_fragment(profile), "x").pools
    assert pool.gpu.peak("bf16") == pytest.approx(profile.gpu.peak("bf16"))
    assert pool.gpus == profile.count
    assert pool.memory_bytes == pytest.approx(profile.memory_bytes)


def test_the_median_ignores_a_few_slow_samples() -> None:
    found = timing([1.0, 1.0, 1.1, 0.9, 50.0])
    assert found.seconds == 1.0
    assert found.spread > 0


@pytest.mark.parametrize("direction", ["forward", "dgrad", "wgrad"])
def test_a_product_in_fp8_is_the_product_alone(direction: str) -> None:
    row = OperatorTime(kind="gemm", direction=direction, dtype="fp8", seconds=0.0, m=64, n=128, k=192, groups=1)
    (call, *_) = gemm_calls(row, find_device("cpu", None))
    out: Any = call()
    assert (tuple(out.shape), str(out.dtype)) == ((64, 128), "torch.bfloat16")


@pytest.mark.parametrize(("direction", "tensors"), [("forward", 2), ("backward", 3)])
def test_a_norm_covers_all_its_bytes(direction: str, tensors: int) -> None:
    size = tensors * 4 * 2048 * 16
    row = OperatorTime(
        kind="memory", direction=direction, dtype="fp32", operation="layer_norm", seconds=0.0, bytes=size
    )
    (call, *_) = memory_calls(row, find_device("cpu", None))
    found: Any = call()
    out = found[0]
    assert out.shape == (16, 2048)
    assert out.isfinite().all()
