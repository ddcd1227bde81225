"""Machines as process groups with folders of their own, which share no path: started, killed, stopped, cut off."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests import warm
from tests.golden.plans import cluster_of
from tests.runtime.commands import run_ranks
from tests.runtime.recovery.network import Network
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright import Cluster, Plan, save
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.state.recipe import Recipe
from shardwright.runtime.storage.data import write_tokens
from shardwright.runtime.storage.mixture import Source

PATIENCE_SECONDS, UNDISTURBED_SECONDS, LOG_CHARACTERS = 120.0, 1200.0, 12_000
ENDLESS = 1_000_000
SECRET = "of the machines in tests"
GENTLY = ("--learning-rate", 3e-5)
"""At the usual rate the data are known by heart after 700 steps, and losses near 0 differ by 4.5e-5 between one process
and two; at this one by 2.2e-7."""
LONGEST_TURN_SECONDS = 1.0
"""What is longer than that was a time in which the whole machine stood still: one that is out of memory does."""
BELOW_EPHEMERAL = range(12_000, 32_000)  # what the system hands out begins at 32,768
_asked = count(97 * os.getpid())
ROOT = Path(__file__).parents[3]
MODEL = tiny_model(4, vocab=257)
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "vocab_size": 257,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-3,
}
"""The config of that model, with an epsilon of its own."""


def machines(nodes: int, gpus: int) -> Cluster:
    (pool,) = cluster_of(1).pools
    return Cluster(pools=(replace(pool, nodes=nodes, gpus_per_node=gpus),), name="fleet")


def pipelines(nodes: int = 2, gpus: int = 2, **options: Any) -> Plan:
    """Two copies of a pipeline of two stages, a stage on each machine."""
    return plan_of(
        MODEL, replica(stage((0, 2)), stage((2, 4)), count=2, micro_batches=2), cluster=machines(nodes, gpus), **options
    )


def copies(nodes: int = 3, **options: Any) -> Plan:
    """A copy of the model on each of several machines of one GPU, six micro-batches in all."""
    whole = replica(stage((0, 4)), count=nodes, micro_batches=6 // nodes)
    return plan_of(MODEL, whole, cluster=machines(nodes, 1), **options)


class Fleet:
    """A run on several machines, each with a keeper; `folder` has a folder for each. `extra` are options of all,
    `options` those of single machines; `mortal` machines can be armed. With a
    `network` machines have addresses of their own, and see no folder of another's."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        steps: int,
        *,
        every: int = 5,
        silence: float = 8.0,
        extra: Sequence[object] = (),
        mortal: bool = False,
        options: Mapping[int, Sequence[object]] = MappingProxyType({}),
        network: Network | None = None,
    ) -> None:
        self.network = network
        self.extra, self.mortal, self.options = extra, mortal, options
        self.folder, self.plan, self.steps, self.every, self.silence = folder, plan, steps, every, silence
        self.count = sum(pool.nodes for pool in plan.cluster.pools)
        self.ports = _free_ports(self.count)
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Fleet:
        for index in range(self.count):
            self.start(index)
        return self

    def __exit__(self, *_: object) -> None:
        for index in list(self.running):
            self.lose(index)

    def place(self, index: int) -> Path:
        return self.folder / f"machine-{index}"

    def address(self, index: int) -> str:
        host = "127.0.0.1" if self.network is None else self.network.address(index)
        return f"{host}:{self.ports[index]}"

    def start(self, index: int) -> None:
        """Start the keeper of a machine, which has a copy of plan and data of its own."""
        place = self.place(index)
        supplied(place, self.plan)
        arguments = [
            place / "plan.json",
            "--data",
            place / "c.bin",
            "--out",
            place / "out",
            "--memory",
            place / "memory",
        ]
        arguments += [
            "--steps",
            self.steps,
            "--snapshot-every",
            self.every,
            "--silence",
            self.silence,
            "--device",
            "cpu",
        ]
        arguments += ["--elastic", "--name", f"machine-{index}", "--listen", self.address(index)]
        arguments += ["--join", ",".join(map(self.address, range(self.count))), *self.extra]
        arguments += self.options.get(index, ())
        words = [sys.executable, "-m", "shardwright", "train", *map(str, arguments)]
        if self.network is not None:
            words = self.network.command(index, self.folder, place, words)
        with (place / "log").open("ab") as log, warm.programs():
            self.running[index] = subprocess.Popen(
                words,
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1", "SHARDWRIGHT_SECRET": SECRET} | self._prepared(index),
                start_new_session=True,
            )

    def _prepared(self, index: int) -> dict[str, str]:
        """Return the environment of a machine that knows the tests' object store, and some function of which may be its
        last (`deaths/sitecustomize.py`)."""
        remote = any(str(word).startswith("remote://") for word in self.extra)
        if not (self.mortal or remote):
            return {}
        (self.place(index) / "deaths").mkdir(exist_ok=True)
        paths = [str(Path(__file__).with_name("deaths")), os.environ.get("PYTHONPATH", ""), str(ROOT)]
        found = {"PYTHONPATH": ":".join(filter(None, paths))}
        found |= {"DEATHS": str(self.place(index) / "deaths")} if self.mortal else {}
        return found | ({"REMOTE": "1"} if remote else {})

    def arm(self, index: int, place: str) -> Path:
        """Have the next process of a machine that comes to a place die there; the file is gone when it has."""
        path = self.place(index) / "deaths" / place
        path.touch()
        return path

    def lose(self, index: int, *, memory_too: bool = True) -> None:
        """Kill all processes of a machine at once, and lose its memory and disk."""
        process = self.running.pop(index)
        for pid in [process.pid, *descendants(process.pid)]:
            _signal(pid, signal.SIGKILL)
        process.wait()
        if not memory_too:
            return
        for name in ("memory", "out/state"):
            shutil.rmtree(self.place(index) / name, ignore_errors=True)

    def workers(self, index: int) -> list[int]:
        """Return the processes that have a rank on a machine."""
        path = self.place(index) / "out" / "elastic.json"
        return [int(pid) for pid in json.loads(path.read_text())["workers"].values()]

    def kill_workers(self) -> None:
        """Kill the workers of all machines at once: each is stopped before any is killed, so none hands its state over."""
        pids = [pid for index in range(self.count) for pid in self.workers(index)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                _signal(pid, number)

    def signal_worker(self, index: int, number: int, chosen: random.Random) -> None:
        _signal(chosen.choice(self.workers(index)), number)

    def signal_machine(self, index: int, number: int) -> None:
        """Send a signal to all processes of a machine."""
        process = self.running[index]
        for pid in [process.pid, *descendants(process.pid)]:
            _signal(pid, number)

    def step(self, index: int = 0) -> int:
        """Return the step that a machine told last: a run that lost all of a shard goes back."""
        return next((int(row["step"]) for row in reversed(self.rows(index))), 0)

    def rows(self, index: int = 0) -> list[dict[str, str]]:
        path = self.place(index) / "out" / "metrics.csv"
        try:
            with path.open(newline="") as file:
                return [row for row in csv.DictReader(file) if row["peak_memory_bytes"]]
        except FileNotFoundError:
            return []

    def losses(self, index: int = 0) -> list[float]:
        return [float(row["loss"]) for row in self.rows(index)]

    def recoveries(self) -> list[dict[str, Any]]:
        """Return what all coordinators recorded, by generation."""
        paths = self.folder.glob("machine-*/out/recoveries.jsonl")
        found = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        return sorted(found, key=lambda one: int(one["generation"]))

    def generation(self) -> int:
        """Return the newest generation that any machine went on in."""
        return max((one["generation"] for one in self.recoveries()), default=0)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something. Fails with the logs where it does not come; mortal machines say where they are."""
        left, now = PATIENCE_SECONDS, time.monotonic()
        while not condition():
            before, now = now, time.monotonic()
            left -= min(now - before, LONGEST_TURN_SECONDS)
            if left < 0.0 or self._failed():
                for index in self.running if self.mortal else ():
                    self.signal_machine(index, signal.SIGUSR1)
                time.sleep(1.0)
                raise AssertionError(f"{what}:\n{self.logs()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Have the run stop after its step, and wait until all machines have ended well."""
        for process in self.running.values():
            process.send_signal(signal.SIGINT)
        self.finish()

    def finish(self) -> None:
        """Wait until all machines have ended well."""
        self.until(lambda: all(process.poll() is not None for process in self.running.values()), "the end")

    def logs(self) -> str:
        return "\n".join(
            f"{path}:\n{path.read_text()[-LOG_CHARACTERS:]}" for path in sorted(self.folder.glob("machine-*/log"))
        )

    def _failed(self) -> bool:
        well = (None, 0, -signal.SIGKILL) if self.mortal else (None, 0)
        return any(process.poll() not in well for process in self.running.values())


def settings_in(folder: Path) -> Settings:
    """Return what a run of one step is told that trains on a file of a folder."""
    supplied(folder, copies())
    return Settings(data=(Source(path=folder / "c.bin"),), out=folder, steps=1, recipe=Recipe())


def supplied(place: Path, plan: Plan) -> None:
    """Put a plan and data into a folder."""
    place.mkdir(parents=True, exist_ok=True)
    save(plan, place / "plan.json")
    (place / "a.txt").write_text("It is a truth universally acknowledged, that a single man. ", encoding="utf-8")
    write_tokens(place / "c.bin", [place / "a.txt"] * 50)


def undisturbed(place: Path, steps: int, plan: Plan | None = None, extra: Sequence[object] = ()) -> dict[int, float]:
    """Return the losses of a run that nothing happens to, by step, told `extra` options; of one process, as every plan
    has them within rounding, if there is no plan."""
    return {int(row["step"]): float(row["loss"]) for row in undisturbed_rows(place, steps, plan, extra)}


def undisturbed_rows(
    place: Path, steps: int, plan: Plan | None = None, extra: Sequence[object] = ()
) -> list[dict[str, str]]:
    """Return the rows of metrics of such a run, told `extra` options."""
    plan = plan or copies(1)
    supplied(place, plan)
    (pool,) = plan.cluster.pools
    out, told = place / "out", (place / "plan.json", "--data", place / "c.bin", "--steps", steps)
    done = run_ranks(pool.nodes, pool.gpus_per_node, *told, *extra, "--out", out, seconds=UNDISTURBED_SECONDS)
    assert done.returncode == 0, done.stderr
    with (out / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] + _of_threads(pid)
    except (FileNotFoundError, ProcessLookupError):
        return []


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return [*found, *(other for child in found for other in descendants(child))]


def _of_threads(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        if task.name != str(pid):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _free_ports(number: int) -> list[int]:
    """Return ports one after another, below those that the system hands out, and each time others: tests beside this
    one begin elsewhere."""
    while True:
        begin = BELOW_EPHEMERAL[0] + next(_asked) % (len(BELOW_EPHEMERAL) - number)
        ports = list(range(begin, begin + number))
        if all(map(_is_free, ports)):
            next(islice(_asked, number, number), None)
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as item:
        try:
            item.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
