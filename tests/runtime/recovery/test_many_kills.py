"""Hundreds of kills of processes and machines at random moments and inside chosen functions, in one run of three
machines whose optimizer is sharded over them: it ends with the losses of the run that nothing happened to."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.runtime.recovery.fleet import Fleet, copies

KILLS = int(os.environ.get("SHARDWRIGHT_KILLS", "200"))
MACHINES, EVERY, ENDLESS = 3, 3, 1_000_000
TRAINING = ("optimizer", "snapshot", "upload", "disk", "copy")
RECOVERING = ("settle", "quorum", "plan", "transfer", "start", "taking back")
COORDINATING = ("quorum", "plan")
KINDS = (
    *("worker", "worker", "worker twice", "worker stopped", "machine", "machine stopped", "keeper", "coordinator"),
    "two machines",
    *TRAINING,
    *RECOVERING,
)


@pytest.mark.nightly
def test_hundreds_of_kills(tmp_path: Path) -> None:
    """No recovery goes back by more than an interval of snapshots, and no loss differs from the undisturbed run's."""
    chosen, done = random.Random(int(os.environ.get("SHARDWRIGHT_SEED", "7"))), Counter[str]()
    store = tmp_path / "store"
    plan = copies(MACHINES, sharding="zero1")
    extra = ["--upload", f"file://{store}", "--wait", 60]
    with Fleet(tmp_path, plan, ENDLESS, every=EVERY, silence=3.0, extra=extra, mortal=True) as fleet:
        settled(fleet)
        while done.total() < KILLS:
            kind = KINDS[done.total() % len(KINDS)]
            time.sleep(chosen.random())  # any moment of a step, a snapshot, an upload
            before, generation = newest(fleet), fleet.generation()
            struck(fleet, kind, chosen)
            done[kind] += 2 if kind in ("two machines", "worker twice") else 1
            revived(fleet)
            fleet.until(lambda old=generation: fleet.generation() > old, f"a recovery from {kind}")
            settled(fleet)
            first = next(item for item in fleet.recoveries() if item["generation"] > generation)
            assert first["step"] >= before - 2 * EVERY, f"{kind}: {before} steps were done; {first}\n{fleet.logs()}"
            print(f"{done.total()} kills: {kind} after {before} steps, goes on at {first['step']}", flush=True)
        for process in fleet.running.values():
            process.send_signal(signal.SIGINT)
        fleet.finish()
        found = [{int(row["step"]): float(row["loss"]) for row in fleet.rows(index)} for index in range(MACHINES)]
    last = max(step for rows in found for step in rows)
    with Fleet(tmp_path / "undisturbed", plan, last) as fleet:
        fleet.finish()
        expected = dict(enumerate(fleet.losses(), 1))
    for rows in found:
        assert rows == pytest.approx({step: expected[step] for step in rows}, rel=1e-5)
    print(f"{last} steps, {done}")


def newest(fleet: Fleet) -> int:
    return max(fleet.step(index) for index in range(MACHINES))


def struck(fleet: Fleet, kind: str, chosen: random.Random) -> None:
    """Do one thing to the run, and return when something has died of it."""
    victim, other = chosen.sample(range(MACHINES), 2)
    match kind:
        case "worker" | "worker stopped":
            fleet.signal_worker(victim, signal.SIGKILL if kind == "worker" else signal.SIGSTOP, chosen)
        case "worker twice":
            fleet.signal_worker(victim, signal.SIGKILL, chosen)
            time.sleep(2 * chosen.random())
            fleet.signal_worker(other, signal.SIGKILL, chosen)
        case "machine":
            fleet.lose(victim)
        case "two machines":
            fleet.lose(victim)
            fleet.lose(other)
        case "machine stopped":
            generation = fleet.generation()
            fleet.signal_machine(victim, signal.SIGSTOP)
            fleet.until(lambda: fleet.generation() > generation, "the others to go on")
            fleet.lose(victim)
        case "keeper":
            fleet.lose(victim, memory_too=False)
        case "coordinator":
            first = fleet.recoveries()[-1]["machines"][0]
            fleet.lose(int(first.removeprefix("machine-")))
        case _:
            files = [fleet.arm(index, kind) for index in (range(MACHINES) if kind in COORDINATING else (other,))]
            if kind in RECOVERING:
                fleet.signal_worker(victim, signal.SIGKILL, chosen)
            fleet.until(lambda: not all(file.exists() for file in files), f"a death in {kind}")
            for file in files:
                file.unlink(missing_ok=True)


def revived(fleet: Fleet) -> None:
    """Start the machines that are down again."""
    time.sleep(0.2)
    for index in range(MACHINES):
        if index in fleet.running and fleet.running[index].poll() is not None:
            fleet.lose(index, memory_too=False)
        if index not in fleet.running:
            fleet.start(index)


def settled(fleet: Fleet) -> None:
    """Wait until all machines train together."""

    def together() -> bool:
        revived(fleet)
        found = fleet.recoveries()
        return bool(found) and len(found[-1]["machines"]) == MACHINES and newest(fleet) > found[-1]["step"] + EVERY

    fleet.until(together, "all machines to train")
