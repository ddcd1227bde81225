"""What goes wrong while nobody looks: each must end in a clear message or in nothing lost, never in silence."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests import warm
from tests.runtime.commands import (
    MODEL,
    children,
    command,
    gone,
    make_folder,
    rank_process,
    rows,
    run,
    run_alone,
    started,
    waited,
)

from shardwright.runtime.job.ending import DIVERGED
from shardwright.runtime.storage.manifest import checkpoints
from shardwright.spec.read.huggingface_config import config_of_model

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """A run of four steps with a checkpoint at two and four."""
    out = folder / "trained"
    done = run_alone(
        folder / "single.json", *arguments(folder, out, 4), "--checkpoint-every", 2, "--learning-rate", 1e-3
    )
    assert done.returncode == 0, done.stderr
    return out


def arguments(folder: Path, out: Path, steps: int) -> list[object]:
    return ["--data", folder / "c.bin", "--out", out, "--steps", steps]


def copied(trained: Path, out: Path) -> Path:
    shutil.copytree(trained, out)
    return out


@pytest.mark.parametrize(
    ("number", "under"),
    [
        (signal.SIGKILL, ()),
        pytest.param(signal.SIGKILL, TORCHRUN, marks=pytest.mark.nightly),
    ],
)
def test_no_rank_outlives_what_started_it(folder: Path, tmp_path: Path, number: int, under: Sequence[str]) -> None:
    process = started(folder, tmp_path / "out", under=under)
    ranks = [rank_process(children(process), rank) for rank in (0, 1)]
    process.send_signal(number)
    process.communicate()
    assert waited(lambda: all(gone(rank) for rank in ranks), 10)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_diverged_run_stops_and_keeps_the_last_good_checkpoint(
    folder: Path, tmp_path: Path, trained: Path, precision: str
) -> None:
    out = copied(trained, tmp_path / "out")
    changed = ["--precision", precision, "--accept-change", "precision", "--learning-rate", 1e38]
    told = [*arguments(folder, out, 40), "--resume", out, "--checkpoint-every", 1, "--keep", 1]
    done = run_alone(folder / "single.json", *told, *changed)
    assert done.returncode == DIVERGED
    assert "error: training has diverged: steps " in done.stderr and "Traceback" not in done.stderr
    assert f"--resume {out / 'step-00000004'} and a lower --learning-rate" in done.stderr
    assert len(rows(out)) < 20
    assert (out / "step-00000004" / "manifest.json").exists()


def test_two_runs_in_one_folder_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = started(folder, out, plan="single")
    second = run_alone(folder / "single.json", *arguments(folder, out, 1))
    assert second.returncode == 2
    assert f"another run writes there: process {first.pid} of " in second.stderr
    first.kill()
    first.communicate()
    third = run_alone(folder / "single.json", *arguments(folder, out, 1))
    assert third.returncode == 0, third.stderr


def flipped(path: Path) -> Path:
    """Flip a bit of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1 << 6
    path.write_bytes(content)
    return path


def test_a_flipped_bit_is_found_and_the_step_before_goes_on(folder: Path, tmp_path: Path, trained: Path) -> None:
    out, newest = copied(trained, tmp_path / "out"), tmp_path / "out" / "step-00000004"
    path = flipped(newest / "rank-00000.state")
    named = run_alone(folder / "single.json", *arguments(folder, out, 5), "--resume", newest)
    assert named.returncode == 2
    assert f"{path}: has changed: the hash of the " in named.stderr and "Traceback" not in named.stderr
    done = run_alone(folder / "single.json", *arguments(folder, out, 5), "--resume", out)
    assert done.returncode == 0, done.stderr
    assert f"warning: {newest} is damaged and is kept as step-00000004.damaged: {path}: has changed" in done.stderr
    assert f"warning: training goes on from {out / 'step-00000002'}" in done.stderr
    assert [int(row["step"]) for row in rows(out)] == [1, 2, 3, 4, 5]
    assert [row["loss"] for row in rows(out)][:4] == [row["loss"] for row in rows(trained)]
    assert [item.name for item in checkpoints(out)] == ["step-00000002", "step-00000005"]


def test_where_no_step_is_whole_each_is_told_and_left_as_it_is(folder: Path, tmp_path: Path, trained: Path) -> None:
    out = copied(trained, tmp_path / "out")
    torn = out / "step-00000004" / "manifest.json"
    torn.write_bytes(torn.read_bytes()[:-20])
    flipped(out / "step-00000002" / "rank-00000.state")
    done = run_alone(folder / "single.json", *arguments(folder, out, 6), "--resume", out)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"{torn}: is cut off or was changed" in done.stderr
    assert "step-00000002/rank-00000.state: has changed" in done.stderr
    assert len(checkpoints(out)) == 2


def test_what_a_run_was_told_travels_and_may_change_and_other_data_are_refused(
    folder: Path, tmp_path: Path, trained: Path
) -> None:
    out = copied(trained, tmp_path / "out")
    done = run_alone(folder / "single.json", *arguments(folder, out, 5), "--resume", out)
    assert done.returncode == 0, done.stderr
    assert {float(row["learning_rate"]) for row in rows(out)} == {1e-3}
    other = ["--learning-rate", 5e-4, "--schedule", "linear", "--decay", 8, "--beta2", 0.99, "--epsilon", 1e-6]
    changed = run_alone(folder / "single.json", *arguments(folder, out, 6), "--resume", out, *other)
    assert changed.returncode == 0, changed.stderr
    for words in (
        "learning_rate 0.001 -> 0.0005",
        "schedule cosine -> linear",
        "decay_steps 0 -> 8",
        "epsilon 1e-08 -> 1e-06",
    ):
        assert words in changed.stderr
    assert "betas [0.9, 0.95] -> [0.9, 0.99]" in changed.stderr
    assert float(rows(out)[-1]["learning_rate"]) == pytest.approx(5e-4 * (0.1 + 0.9 * 3 / 8))
    elsewhere = tmp_path / "other.bin"
    tokens = np.fromfile(folder / "c.bin", np.uint16)
    tokens[1000] += 1
    tokens.tofile(elsewhere)
    shutil.copy(folder / "c.json", tmp_path / "other.json")
    told = ["--data", elsewhere, "--out", out, "--steps", 7, "--resume", out]
    refused = run_alone(folder / "single.json", *told, "--seed", 1)
    assert refused.returncode == 2
    assert "was written with data c.bin" in refused.stderr and "--accept-change data" in refused.stderr
    assert "was written with seed 0, this run has 1" in refused.stderr
    asked = run_alone(folder / "single.json", *told, "--accept-change", "data")
    assert asked.returncode == 0 and "data c.bin" in asked.stderr


def test_a_run_that_goes_back_to_an_older_step_keeps_what_it_saves_from_there(
    folder: Path, tmp_path: Path, trained: Path
) -> None:
    out = copied(trained, tmp_path / "out")
    weights = ["--save-weights", tmp_path / "weights"]
    exported = run_alone(
        folder / "single.json", *arguments(folder, out, 2), "--resume", out / "step-00000002", *weights
    )
    assert exported.returncode == 0, exported.stderr
    assert f"finished at step 2; checkpoint {out / 'step-00000002'}" in exported.stdout
    assert (tmp_path / "weights" / "model.safetensors.index.json").exists()
    assert [item.name for item in checkpoints(out)] == ["step-00000002", "step-00000004"], "nothing was trained"
    back = run_alone(folder / "single.json", *arguments(folder, out, 3), "--resume", out / "step-00000002")
    assert back.returncode == 0, back.stderr
    assert f"warning: {out / 'step-00000004'} is given up and is kept as step-00000004.given-up" in back.stderr
    assert f"finished at step 3; checkpoint {out / 'step-00000003'}" in back.stdout
    assert [item.name for item in checkpoints(out)] == ["step-00000002", "step-00000003"]


def test_a_run_that_goes_on_elsewhere_is_not_mixed_with_what_is_there(
    folder: Path, tmp_path: Path, trained: Path
) -> None:
    other = copied(trained, tmp_path / "other")
    done = run_alone(folder / "single.json", *arguments(folder, other, 6), "--resume", trained)
    assert done.returncode == 2
    assert f"--out {other}: has the checkpoints of an earlier run" in done.stderr
    assert f"go on from them with --resume {other}" in done.stderr


def test_a_run_does_not_go_on_with_another_epsilon(folder: Path, tmp_path: Path, trained: Path) -> None:
    config = config_of_model(MODEL)
    (tmp_path / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.25}))
    more = ["--resume", trained, "--config", tmp_path / "config.json"]
    done = run_alone(folder / "single.json", *arguments(folder, tmp_path / "out", 6), *more)
    assert done.returncode == 2
    assert "was written with config norm_epsilon 1e-06, this run has norm_epsilon 0.25" in done.stderr
    assert "go on with the --config or --weights that it was written with" in done.stderr


def test_tokens_beyond_the_vocabulary_and_too_few_are_refused(folder: Path, tmp_path: Path) -> None:
    tokens = np.fromfile(folder / "c.bin", np.uint16)
    tokens[1000] = 300
    tokens.tofile(tmp_path / "c.bin")
    header = json.loads((folder / "c.json").read_text())
    (tmp_path / "c.json").write_text(json.dumps(header))
    done = run_alone(folder / "single.json", *arguments(tmp_path, tmp_path / "out", 1))
    assert done.returncode == 2 and "token 1,000 is 300, the model's vocabulary ends at 256" in done.stderr
    tokens[:60].tofile(tmp_path / "c.bin")
    (tmp_path / "c.json").write_text(json.dumps(header | {"tokens": 60}))
    done = run_alone(folder / "single.json", *arguments(tmp_path, tmp_path / "out", 1))
    assert done.returncode == 2 and "3 samples of 16; a step takes 4" in done.stderr


@pytest.mark.parametrize("under", [(), pytest.param(TORCHRUN, marks=pytest.mark.nightly)])
def test_training_goes_on_to_the_end_where_the_disk_is_full(folder: Path, tmp_path: Path, under: Sequence[str]) -> None:
    out = tmp_path / "out"
    words = command(folder / "pair.json", *arguments(folder, out, 6), "--checkpoint-every", 2, under=under)
    limit = (1 << 16, 1 << 16)  # no file may be larger: metrics fit, state does not
    with nullcontext() if under else warm.programs():
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=120, check=False,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, limit),
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "warning: step 2 is not saved, training goes on: " in done.stderr
    for step in (2, 4, 6):
        assert f"error: not saved: checkpoint of step {step}: " in done.stderr
    assert len(rows(out)) == 6
    assert not list(out.glob("*step-*")), "nothing half written stays"
    if not under:
        assert "Traceback" not in done.stderr and "finished at step 6" in done.stdout


def test_bad_input_under_torchrun_is_told_once_and_without_other_errors(
    folder: Path, tmp_path: Path, trained: Path
) -> None:
    out = copied(trained, tmp_path / "out")
    shutil.rmtree(out / "step-00000002")
    for file in (out / "step-00000004").glob("*.state"):  # each rank finds it by itself
        file.write_bytes(bytes(file.stat().st_size))
    done = run(folder / "pair.json", *arguments(folder, out, 6), "--resume", out, under=TORCHRUN)
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if "has changed: the hash of" in line]
    assert len(told) == 1 and told[0].startswith("error: ") and told[0].count("has changed") == 2, (
        "by both, in one line"
    )
    assert "DistNetworkError" not in done.stderr and "DistStoreError" not in done.stderr


def test_a_rank_that_computes_for_ever_is_named(folder: Path, tmp_path: Path) -> None:
    """A rank whose watch thread lives while its main thread stands still: as on a GPU that hangs."""
    environment = os.environ | {"PYTHONPATH": f"{Path(__file__).parent}/stuck:{os.environ.get('PYTHONPATH', '')}"}
    words = command(folder / "tensor.json", *arguments(folder, tmp_path / "out", 50), "--patience", 10)
    with warm.programs():
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 1
    assert "error: rank 1 (replica 0.0, stage 0, tp 1) is stuck: computing, forward of micro-batch " in done.stderr
    assert ", step 5, for " in done.stderr
