"""Hundreds of kills of processes and machines at random moments and inside chosen functions, and cut links, in runs of
three machines whose optimizer is sharded over them, with every option on: they end with the losses of the run that
nothing happened to."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.runtime.recovery.fleet import ENDLESS, GENTLY, Fleet, copies, undisturbed
from tests.runtime.recovery.network import network

MACHINES, EVERY = 3, 3
TRAINING = ("optimizer", "snapshot", "upload", "disk", "copy")
RECOVERING = ("settle", "quorum", "plan", "transfer", "start", "taking back")
COORDINATING = ("quorum", "plan")
CUT = ("cut off", "coordinator cut off", "others replaced")
KINDS = (
    *("worker", "worker", "worker twice", "worker stopped", "machine", "machine stopped", "keeper", "coordinator"),
    *("two machines", "stuck"),
    *CUT,
    *TRAINING,
    *RECOVERING,
)
KILLS = dict.fromkeys(("two machines", "worker twice", *RECOVERING), 2) | {"others replaced": 3}
"""Of those that are more than one."""
SEEDS = [int(seed) for seed in os.environ.get("SHARDWRIGHT_SEEDS", "0 1 2 3 4 5 6").split()]
"""Seven runs of 34 kills: 238."""
RECIPE = (*GENTLY, "--schedule", "linear", "--warmup", 3, "--decay", 900, "--clip", 0.5, "--weight-decay", 0.2)


def every_option(place: Path) -> list[object]:
    """Return what else a machine is told that has its own files in a place."""
    measured = ["--trace", place / "trace.json", "--profile", place / "profile.json", "--profile-steps", 2]
    evaluated = ["--eval-data", place / "c.bin", "--eval-every", 7, "--eval-batches", 1]
    return [*measured, *evaluated, "--logs", place / "logs", "--checkpoint-every", 4, "--keep", 3]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_of_death_in_one_run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """No recovery goes back by more than an interval of snapshots, or to an older step than the object store had where
    all copies of a shard are lost; and no loss differs from the undisturbed run's."""
    chosen, kills, store = random.Random(seed), 0, tmp_path_factory.mktemp("store")
    kinds = chosen.sample(KINDS, len(KINDS))
    extra = ["--upload", f"file://{store}", "--wait", 60, *RECIPE]
    options = {index: every_option(tmp_path / f"machine-{index}") for index in range(MACHINES)}
    plan = copies(MACHINES, sharding="zero1")
    with (
        network(MACHINES) as wires,
        Fleet(
            tmp_path, plan, ENDLESS, every=EVERY, silence=3.0, extra=extra, mortal=True, options=options, network=wires
        ) as fleet,
    ):
        settled(fleet)
        for kind in kinds:
            time.sleep(chosen.random())  # any moment of a step, a snapshot, an upload
            before, generation = newest(fleet), fleet.generation()
            least = min(before - EVERY, in_store(store)) if kind == "two machines" else before - EVERY
            kills += struck(fleet, kind, chosen)
            revived(fleet)
            fleet.until(lambda old=generation: fleet.generation() > old, f"a recovery from {kind}")
            settled(fleet)
            first = next(item for item in fleet.recoveries() if item["generation"] > generation)
            assert first["step"] >= least, f"{kind}: {before} steps were done; {first}\n{fleet.logs()}"
            print(f"{kills} kills: {kind} after {before} steps, goes on at {first['step']}", flush=True)
        fleet.stop()
        found = [{int(row["step"]): float(row["loss"]) for row in fleet.rows(index)} for index in range(MACHINES)]
    last = max(step for rows in found for step in rows)
    expected = undisturbed(tmp_path / "undisturbed", last, extra=RECIPE)
    for rows in found:
        for step, loss in rows.items():
            assert loss == pytest.approx(expected[step], rel=1e-5), step
    worst = max(abs(loss / expected[step] - 1) for rows in found for step, loss in rows.items())
    print(f"{kills} kills, {last} steps; no loss differs by more than {worst:.1e} of itself")


def newest(fleet: Fleet) -> int:
    return max(fleet.step(index) for index in range(MACHINES))


def in_store(store: Path) -> int:
    """Return the newest step in an object store."""
    return max((int(path.parent.name.removeprefix("step-")) for path in store.glob("step-*/manifest.json")), default=0)


def struck(fleet: Fleet, kind: str, chosen: random.Random) -> int:
    """Do one thing to the run, and return how many kills it was when something has died of it."""
    victim, other = chosen.sample(range(MACHINES), 2)
    first = int(fleet.recoveries()[-1]["machines"][0].removeprefix("machine-"))
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
            fleet.lose(first)
        case "stuck":
            armed = fleet.arm(other, kind)
            fleet.until(lambda: not armed.exists(), "a rank that is stuck")
            fleet.signal_worker(victim, signal.SIGKILL, chosen)
        case _ if kind in CUT:
            cut_off(fleet, first if kind == "coordinator cut off" else victim, replaced=kind == "others replaced")
        case _:
            files = [fleet.arm(index, kind) for index in (range(MACHINES) if kind in COORDINATING else (other,))]
            if kind in RECOVERING:
                fleet.signal_worker(victim, signal.SIGKILL, chosen)
            fleet.until(lambda: not all(file.exists() for file in files), f"a death in {kind}")
            for file in files:
                file.unlink(missing_ok=True)
    return KILLS.get(kind, 1)


def cut_off(fleet: Fleet, index: int, *, replaced: bool) -> None:
    """Cut a machine's link until the others have gone on without it, and have been `replaced` one by one: then it comes
    back to a run in which nobody knows the generation that it was in. It finds them by itself."""
    assert fleet.network is not None
    others = {f"machine-{other}": other for other in range(MACHINES) if other != index}
    generation = fleet.generation()

    def together() -> bool:
        return fleet.generation() > generation and set(fleet.recoveries()[-1]["machines"]) == others.keys()

    fleet.network.cut(index)
    fleet.until(together, f"the others to go on without machine-{index}")
    for other in others.values() if replaced else ():
        generation = fleet.generation()
        fleet.lose(other)
        fleet.start(other)
        fleet.until(together, f"a new machine-{other}")
    fleet.network.mend(index)


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
