"""What a recovery takes, measured with real machines over throttled links: each a network namespace with a link of its
own to a switch, behind which the object store is. Needs root.

.venv/bin/python -m benchmarks.recovery [--quick]

* Bandwidths are a fiftieth of those assumed elsewhere (`recovery.outlook.Rates`), and the states as much smaller than
  those of models that are trained: machines send and receive 25 MB/s, each reads 5 MB/s from the object store. AutoHet
  does not publish its own. Memory is this machine's.
* Scenarios as AutoHet's: all layers survive (of three copies a machine is lost), some do (of an optimizer sharded over
  three machines two are lost, with the copies that they had of each other), none does (all machines are new).
* Reloading reads everything from the object store, by the same code, after a restart by torchrun: its agent finds a
  killed worker, ends the others and has them form their group again, the trainer imported. Where all machines are new,
  torchrun is new on them too: an agent and a worker on each. Both are timed from their launch then, torchrun before and
  after this program, as the mean of the two.
* The usual practice is a checkpoint on each machine's disk, or in a folder that all share: torchrun finds a killed
  worker, starts all anew, and each reads its part of the checkpoint, by `restore` as `train --resume` does. Reading is
  slowed to a fiftieth too: of a disk, and of a file server with the link of a machine, which the machines share. The
  steps since the checkpoint are lost beside, which a recovery from memory keeps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.runtime.recovery.fleet import ENDLESS, Fleet, _free_ports, machines
from tests.runtime.recovery.network import Network, network
from tests.runtime.recovery.store import Store, store
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright import Plan, save
from shardwright.recovery.outlook import Rates
from shardwright.units import format_bytes

SCALE, MACHINES, EVERY = 50, 3, 15
LINK, CLOUD = Rates().link / SCALE, Rates().cloud / SCALE
LAYERS = (3, 6, 12)
RESTART_SECONDS = 300.0
ROW = "{:>10} {:<5} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>7} {:>9} {:>7}"
HEAD = ("state", "kept", "own", "peers", "cloud", "planned", "move", "all", "reload", "+ restart", "ratio")
TOGETHER = """
try:
    dist.barrier()  # who leaves earlier ends the barrier before for the others
except RuntimeError:
    pass
"""
RESTARTED = """
import os, signal, sys, time
import torch.distributed as dist
import shardwright.runtime.job.worker
dist.init_process_group("gloo")
dist.barrier()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    print(time.time(), file=open(sys.argv[1], "w"), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
print(time.time(), file=open(sys.argv[1] + str(dist.get_rank()), "w"), flush=True)
"""
RELOADED = """
import os, signal, sys, time
from dataclasses import replace
from pathlib import Path
import torch
import torch.distributed as dist
from shardwright.plans.document import load_plan
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model.details import Details
from shardwright.runtime.state.recipe import Recipe
from shardwright.runtime.step.engine import make_engine
from shardwright.runtime.storage.checkpoint import open_checkpoint, restore, save_checkpoint
from shardwright.runtime.storage.manifest import Course
plan, folder, rate, marks = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo")
rank, layout = dist.get_rank(), layout_of(load_plan(Path(plan)))
groups = make_process_groups(layout, rank)
engine = make_engine(layout, rank, groups, details=Details(), recipe=Recipe(), initial=None, precision="fp32",
                     device=torch.device("cpu"))
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    assert not save_checkpoint(engine, folder, 1, Course(settings={}, data={}, random={}), 0).problem
    dist.barrier()
    if rank == 1:
        print(time.time(), file=open(marks, "w"), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint = open_checkpoint(folder)
def slowly(stored):
    values = checkpoint.fetch(stored)
    time.sleep(stored.bytes / rate)
    return values
assert not restore(engine, replace(checkpoint, fetch=slowly))
dist.barrier()
print(time.time(), file=open(marks + str(rank), "w"), flush=True)
"""
PRACTICES = {"local disk": Rates().disk / SCALE, "shared folder": LINK / MACHINES}
"""Bytes a second that a machine reads of its checkpoint."""
A_STORE_EACH = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""torchrun 2.13 gives the workers of every restart the same store, with no prefix for the attempt: new ones find the
addresses of the old ones in it, and now and then wait for them for ever."""
STARTED = """
import sys, time
import torch.distributed as dist
import shardwright.runtime.job.worker
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    print(time.time(), file=open(sys.argv[1], "w"), flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is kept when machines `lost` are, under a way of sharding the optimizer."""

    kept: str
    sharding: str
    lost: tuple[int, ...]


CASES = (Case(kept="all", sharding="none", lost=(1,)), Case(kept="some", sharding="zero1", lost=(1, 2)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest state alone")
    told = parser.parse_args()
    restart = torchrun_restart()
    print(f"torchrun's restart: {restart:.2f} s\n\n{ROW.format(*HEAD)}", flush=True)
    for layers in LAYERS[: 1 if told.quick else None]:
        for case in CASES:
            ours, reload = measured(layers, case)
            print(row(case.kept, ours, sum(ours["seconds"].values()), reload, restart), flush=True)
        print(row("none", reload, reload["launched_seconds"], reload, reload["torchrun_seconds"]), flush=True)
        for practice, rate in PRACTICES.items():
            print(f"a restart from a checkpoint, {practice}: {restarted(layers, rate):.2f} s", flush=True)


def row(kept: str, ours: dict[str, Any], whole: float, reload: dict[str, Any], restart: float) -> str:
    """Return a line: what moved from where, what the plan said of it, what it took alone and with all other parts."""
    state = sum(reload["moved_bytes"].values())
    moved = [format_bytes(sum(size for name, size in ours["moved_bytes"].items() if name.startswith(kind)))
             for kind in ("own", "peers'", "cloud")]  # fmt: skip
    again = reload["seconds"]["move"]
    seconds = (SCALE * ours["predicted_seconds"], ours["seconds"]["move"], whole, again, again + restart)
    return ROW.format(
        format_bytes(state), kept, *moved, *(f"{s:.2f} s" for s in seconds), f"{(again + restart) / whole:.1f}"
    )


def plan_for(layers: int, sharding: str) -> Plan:
    """Return three copies of a model on a machine each."""
    model = tiny_model(layers, vocab=257, hidden=512)
    whole = replica(stage((0, layers)), count=MACHINES, micro_batches=2)
    return plan_of(model, whole, cluster=machines(MACHINES, 1), sharding=sharding)


def measured(layers: int, case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the recovery from a loss, and that of machines which have nothing and read all from the store, with the
    seconds since they were launched, and those that torchrun took to start around then."""
    plan = plan_for(layers, case.sharding)
    with tempfile.TemporaryDirectory() as folder, network(MACHINES) as wires, store(wires.gateway) as (server, url):
        wires.throttle(LINK, CLOUD)
        with fleet(Path(folder, "first"), plan, url, wires) as run:
            run.until(lambda: uploaded(server), "a step in the object store")
            generation = run.generation()
            for index in case.lost:
                run.lose(index)
            run.until(lambda: run.generation() > generation, "a recovery")
            ours = next(item for item in run.recoveries() if item["generation"] > generation)
        before, launched = torchrun_start(), time.time()
        with fleet(Path(folder, "anew"), plan, url, wires) as run:
            run.until(lambda: run.generation() > 0, "a reload")
            (reload,) = run.recoveries()
        told = {"launched_seconds": reload["began"] - launched, "torchrun_seconds": (before + torchrun_start()) / 2}
        return ours, reload | told


def fleet(folder: Path, plan: Plan, url: str, wires: Network) -> Fleet:
    return Fleet(folder, plan, ENDLESS, every=EVERY, silence=4.0, extra=["--upload", url], network=wires)


def uploaded(server: type[Store]) -> bool:
    return any(name.endswith("manifest.json") for name in list(server.objects))


def torchrun_restart() -> float:
    """Return the seconds from a worker's death until torchrun's new workers have formed their group."""
    with tempfile.TemporaryDirectory() as folder:
        script, killed = Path(folder, "restarted.py"), Path(folder, "killed")
        script.write_text(RESTARTED + TOGETHER)
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(MACHINES)]
        words += ["--max-restarts", "1", str(script), str(killed)]
        subprocess.run(words, check=True, capture_output=True, timeout=RESTART_SECONDS, env=os.environ | A_STORE_EACH)
        return max(formed(Path(folder))) - float(killed.read_text())


def restarted(layers: int, rate: float) -> float:
    """Return the seconds from a worker's death until torchrun's new workers have read a checkpoint at so many bytes a
    second each."""
    with tempfile.TemporaryDirectory() as folder:
        plan, script, killed = (Path(folder, name) for name in ("plan.json", "reloaded.py", "killed"))
        save(plan_for(layers, "none"), plan)
        script.write_text(RELOADED + TOGETHER)
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(MACHINES)]
        words += ["--max-restarts", "1", str(script), str(plan), str(Path(folder, "run")), str(rate), str(killed)]
        subprocess.run(words, check=True, capture_output=True, timeout=RESTART_SECONDS, env=os.environ | A_STORE_EACH)
        return max(formed(Path(folder))) - float(killed.read_text())


def torchrun_start() -> float:
    """Return the seconds from the launch of torchrun on three machines until their workers have formed their group."""
    with tempfile.TemporaryDirectory() as folder:
        script, formed_at = Path(folder, "started.py"), Path(folder, "formed")
        script.write_text(STARTED + TOGETHER)
        (port,) = _free_ports(1)
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(MACHINES), "--nproc-per-node", "1"]
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", str(script), str(formed_at)]
        launched = time.time()
        agents = [
            subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(MACHINES)
        ]
        if any(agent.wait(RESTART_SECONDS) for agent in agents):
            sys.exit("torchrun did not start its workers")
        return float(formed_at.read_text()) - launched


def formed(folder: Path) -> Iterator[float]:
    for rank in range(MACHINES):
        yield float((folder / f"killed{rank}").read_text())


if __name__ == "__main__":
    main()
