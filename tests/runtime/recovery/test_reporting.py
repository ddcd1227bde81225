"""What an elastic run records goes on across generations: every step once, with the figures of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.runtime.recovery.fleet import Fleet, copies, supplied, undisturbed_rows

STEPS, EVERY = 60, 4
TRACKED = ["--tensorboard"] if find_spec("tensorboard") else []

WANDB = """
import os

class Run:
    def __init__(self, id, **_):
        self.id = id
    def log(self, figures, step):
        with open(os.environ["TOLD"], "a") as file:
            print(self.id, step, file=file)
    def finish(self):
        pass

init = Run
"""  # stands in for the package


@pytest.mark.nightly
def test_held_out_losses_documents_trackers_and_logs_outlive_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text(WANDB)
    monkeypatch.setenv("PYTHONPATH", f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}")
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    supplied(tmp_path / "held", copies())
    told = ["--mask-documents", "--eval-data", tmp_path / "held" / "c.bin", "--eval-every", EVERY, "--eval-batches", 2]
    logs = tmp_path / "logs"
    with Fleet(
        tmp_path, copies(), STEPS, every=7, extra=[*told, *TRACKED, "--wandb", "project", "--logs", logs]
    ) as fleet:
        fleet.until(lambda: fleet.step() >= 10, "steps")
        generation = fleet.generation()
        fleet.signal_worker(1, signal.SIGKILL, random.Random(3))
        fleet.until(lambda: fleet.generation() > generation and fleet.step() >= 25, "a recovery")
        generation = fleet.generation()
        fleet.lose(2)
        fleet.until(lambda: fleet.generation() > generation, "a plan for two machines")
        fleet.finish()
        rows = fleet.rows()
        generations = fleet.generation()
    alone = undisturbed_rows(tmp_path / "alone", STEPS, extra=told)
    assert [int(row["step"]) for row in rows] == list(range(1, STEPS + 1))
    assert [float(row["loss"]) for row in rows] == pytest.approx([float(row["loss"]) for row in alone], rel=1e-5)
    held = {int(row["step"]): float(row["held_out_loss"]) for row in rows if row["held_out_loss"]}
    assert list(held) == list(range(EVERY, STEPS + 1, EVERY))
    expected = [float(row["held_out_loss"]) for row in alone if row["held_out_loss"]]
    assert list(held.values()) == pytest.approx(expected, rel=1e-5)
    unmasked = undisturbed_rows(tmp_path / "unmasked", 3)
    assert float(unmasked[2]["loss"]) != pytest.approx(float(rows[2]["loss"]), rel=1e-5)
    for number in range(1, generations + 1):
        ranks = {path.name for path in (logs / f"generation_{number}").iterdir()}
        assert ranks <= {"0", "1", "2"} and "0" in ranks
    sent = [line.split() for line in (tmp_path / "told").read_text().splitlines()]
    assert len({name for name, _ in sent}) == 1, "one run, whichever machine sends"
    assert {int(step) for _, step in sent} == set(range(1, STEPS + 1))
    if TRACKED:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(tmp_path / "machine-0" / "out" / "tensorboard"))
        found.Reload()
        for name, wanted in (("loss", range(1, STEPS + 1)), ("held_out_loss", held)):
            assert [event.step for event in found.Scalars(name)] == list(wanted)
