"""Runs in which workers and machines are killed: they end with the losses of the run that nothing happened to."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from tests.cli.running import answered
from tests.cli.schemas import holds
from tests.nightly import nightly
from tests.runtime.commands import gone, waited
from tests.runtime.recovery.fleet import ENDLESS, GENTLY, SECRET, Fleet, copies, descendants, pipelines, undisturbed
from tests.runtime.samples import under

from shardwright.runtime.recovery.change.generation_change import recovery_after_loss
from shardwright.spec.job import Optimizer

BETWEEN = 5


@pytest.mark.parametrize(("optimizer", "kills"), [("adam", 2), *nightly([("adam", 10), ("muon", 10)])])
def test_workers_killed_and_stopped_one_after_another_change_no_loss(
    optimizer: Optimizer, kills: int, tmp_path: Path
) -> None:
    """Each time a worker of some machine dies at some moment, or falls silent; no step is lost: every shard has another
    holder, whose state is newer than the snapshots."""
    chosen, plan = random.Random(5), under(optimizer, pipelines())
    with Fleet(tmp_path, plan, ENDLESS, silence=4.0) as fleet:
        for kill in range(kills):
            due = fleet.step() + BETWEEN
            fleet.until(lambda due=due: fleet.step() >= due, f"kill {kill}")
            before, generation = fleet.step(), fleet.generation()
            number = signal.SIGSTOP if kill == kills - 1 else signal.SIGKILL
            while fleet.generation() == generation:
                fleet.signal_worker(chosen.randrange(2), number, chosen)
                fleet.until(lambda now=generation: fleet.generation() > now, f"recovery {kill}")
            assert fleet.recoveries()[-1]["step"] >= before
        fleet.stop()
        last = fleet.step()
        expected = undisturbed(tmp_path / "undisturbed", last, plan)
        for index in range(2):  # the row of a step is lost with a worker that dies before it has told it
            found = {int(row["step"]): float(row["loss"]) for row in fleet.rows(index)}
            assert found == {step: expected[step] for step in found}
            assert len(found) >= last - kills and last in found


def test_the_coordinators_machine_is_lost_and_another_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three machines go on under a new plan, at the step where they were; a new machine brings the old plan."""
    with Fleet(tmp_path, copies(), ENDLESS, extra=GENTLY) as fleet:
        fleet.until(lambda: fleet.step(1) >= 12, "steps")
        monkeypatch.setenv("SHARDWRIGHT_SECRET", SECRET)
        expected = recovery_after_loss(("127.0.0.1", fleet.ports[1]), ("machine-0",), SECRET.encode())
        told = ["recover", "--dry-run", "--join", f"127.0.0.1:{fleet.ports[1]}", "--lose", "machine-0", "--json"]
        holds("recovery", answered(told))
        assert (expected.ranks, expected.moved_bytes["cloud"]) == (2, 0)
        before, generation = fleet.step(1), fleet.generation()
        started = descendants(fleet.running[0].pid)
        fleet.running[0].kill()
        assert started and waited(lambda: all(map(gone, started)), 10), "workers end with their keeper"
        fleet.lose(0)
        fleet.until(lambda: fleet.generation() > generation, "a successor")
        found = fleet.recoveries()[-1]
        assert (sorted(found["machines"]), found["ranks"]) == (["machine-1", "machine-2"], 2)
        assert found["step"] >= before
        fleet.start(0)
        fleet.until(lambda: fleet.generation() > found["generation"], "the new machine")
        assert fleet.recoveries()[-1]["ranks"] == 3
        fleet.stop()
        losses = fleet.losses(1)
    alone = undisturbed(tmp_path / "undisturbed", len(losses), extra=GENTLY)
    assert losses == pytest.approx(list(alone.values()), rel=1e-5)


@pytest.mark.nightly
def test_a_rank_out_of_memory_ends_all_machines_at_once_with_its_message(tmp_path: Path) -> None:
    """It would be out of memory again after every recovery."""
    with Fleet(tmp_path, copies(2), ENDLESS, mortal=True) as fleet:
        fleet.until(lambda: fleet.step() >= 3, "steps")
        fleet.arm(1, "out of memory")
        assert [process.wait(120) for process in fleet.running.values()] == [1, 1]
        for index in range(2):
            said = (fleet.place(index) / "log").read_text()
            assert "error: machine-1: rank 1 failed: OutOfMemoryError: CUDA out of memory. Tried to" in said
        assert len(fleet.recoveries()) == 1
