"""What a recovery takes, by its parts, and what protection costs.

.venv/bin/python -m benchmarks.recovery [--quick]

* Detect, re-form, plan and start are those of real processes on this machine: three machines with a worker each, of
  which one is killed several times; medians. So is the start of
  three workers by torchrun, which is the least that a restart of its takes.
* Moving is what the transfer plan takes at fixed bandwidths, for the state of real models: machines read 0.25 GB/s each
  from the object store, 1.25 GB/s from each other, copy 8 GB/s in memory (`recovery.rates.Rates`). AutoHet does not
  publish its own. Reloading reads all from the object store, under the same plan, after torchrun's start.
* Scenarios as AutoHet's: all layers survive (a machine of several copies is lost), some do (two neighbours, one of
  which has the other's only copy), none does (all machines are new).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from signal import SIGKILL

import numpy as np
import torch
from tests.runtime.recovery.fleet import Fleet, copies

import shardwright
from shardwright.cost.money.risk import checkpoint_bytes, optimal_interval_seconds
from shardwright.plans.plan import Plan
from shardwright.recovery.quorum import Machine
from shardwright.recovery.rates import Rates
from shardwright.recovery.seats import seated, stand_ins
from shardwright.recovery.simulation.shards import from_cloud, kept_bytes, moved
from shardwright.runtime.recovery.snapshots import reserve
from shardwright.runtime.storage.manifest import hash_of
from shardwright.search.replan import replan
from shardwright.units import format_bytes

SIZES = (("llama-2-7b", 8), ("llama-2-13b", 8), ("llama-2-70b", 16))
RATES = Rates()
ROW = "{:<12} {:<14} {:>10} {:>10} {:>10} {:>9} {:>9} {:>7} {:>7}"
STARTED = """
import sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
with open(sys.argv[1], "a") as out:
    print(time.time(), flush=True, file=out)
dist.barrier()
"""


def main() -> None:
    """Print three tables."""
    kills = 2 if "--quick" in sys.argv else 6
    with tempfile.TemporaryDirectory() as folder:
        parts, restart = ours(Path(folder) / "fleet", kills), torchrun(Path(folder))
    shown = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items())
    print(f"measured, medians of {kills} kills: {shown}; torchrun's start {restart:.2f} s\n")
    print(ROW.format("model", "survive", "own", "peers", "cloud", "move", "reload", "x move", "x all"))
    fixed = sum(parts.values())
    for name, machines in SIZES:
        plan = plan_of(name, machines)
        for scenario, own, reload in scenarios(plan):
            local, whole = own.seconds, reload.seconds
            cells = [format_bytes(own.bytes[kind]) for kind in ("own memory", "peers' memory", "cloud")]
            print(
                ROW.format(
                    name, scenario, *cells, f"{local:.1f} s", f"{whole:.1f} s", f"{whole / max(local, 1e-9):.1f}",
                    f"{(whole + restart) / (local + fixed):.1f}",
                )
            )  # fmt: skip
    print()
    protection()


def plan_of(model: str, machines: int) -> Plan:
    """Return the best plan of a model with whole copies of the optimizer, so that losses can be outlived."""
    cluster = shardwright.load_cluster(f"{machines}x8xA100-SXM-80")
    return shardwright.plan(
        shardwright.load_model(model), cluster, shardwright.make_job(global_batch=256, seq_len=4096)
    ).best


def scenarios(plan: Plan):  # type: ignore[no-untyped-def]
    """Yield each scenario with what our recovery moves and what a reload does."""
    zones = [replace(machine, zone=f"zone-{n % 2}") for n, machine in enumerate(stand_ins(plan.cluster))]
    fresh = tuple(replace(machine, name=f"new {machine.name}") for machine in zones)
    for scenario, left in (("all", zones[1:]), ("some", zones[2:]), ("none", fresh)):
        after = replan(plan, replace(plan.cluster, pools=(replace(plan.cluster.pools[0], nodes=len(left)),)))
        if after is None:
            continue
        chairs: tuple[Machine, ...] = seated(after, left, kept_bytes(plan, zones, after, left))
        yield scenario, moved(plan, zones, after, chairs, RATES), from_cloud(after, chairs, RATES)


def ours(folder: Path, kills: int) -> dict[str, float]:
    """Return the median seconds of the parts of real recoveries, moving left out."""
    chosen = Random(0)
    with Fleet(folder, copies(3), 1_000_000, every=10, silence=4.0) as fleet:
        fleet.until(lambda: fleet.step() >= 5, "steps")
        for _ in range(kills):
            generation = fleet.generation()
            fleet.signal_worker(1, SIGKILL, chosen)
            fleet.until(lambda now=generation: fleet.generation() > now, "a recovery")
            time.sleep(1.0)
        found = [item["seconds"] for item in fleet.recoveries() if item["generation"] > 1]
    return {name: statistics.median(item[name] for item in found) for name in ("detect", "re-form", "plan", "start")}


def torchrun(folder: Path) -> float:
    """Return the seconds until torchrun's new workers have formed their group: what a restart takes at least, as it
    ends the old ones and meets anew before."""
    script, begun = folder / "started.py", folder / "begun"
    script.write_text(STARTED)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    start = time.time()
    subprocess.run([*words, script, begun], check=True, capture_output=True)
    return max(map(float, begun.read_text().split())) - start


def protection() -> None:
    """Print what a snapshot costs: bandwidth, stall, replication, memory."""
    values = torch.randn(64 << 20)
    path = Path("/dev/shm/shardwright-benchmark.bin")
    try:
        reserve(path, values.numel() * 4)
        memory = torch.from_numpy(np.memmap(path, dtype=np.float32, mode="r+", shape=(values.numel(),)))
        other = torch.empty_like(values)
        snapshot, plain = (best(lambda target=target: target.copy_(values)) for target in (memory, other))
        hashing = best(lambda: hash_of(memory.numpy().data))
    finally:
        path.unlink(missing_ok=True)
    size = values.numel() * 4 / 1e9
    print(
        f"snapshot {size / snapshot:.1f} GB/s, a plain copy {size / plain:.1f} GB/s, hashing {size / hashing:.1f} GB/s"
    )
    for name, machines in SIZES:
        plan = plan_of(name, machines)
        assert plan.prediction is not None
        part = checkpoint_bytes(plan.model, plan.job) / machines
        stall, step = part / (size / snapshot * 1e9), plan.prediction.iteration_seconds
        loss = np.array([machines * 0.01 / 3600.0])
        interval = float(optimal_interval_seconds(loss, np.array([stall]))[0])
        copied = part / RATES.link if plan.optimizer.distributed else 0.0
        print(
            f"{name}: {format_bytes(part)} a machine, {format_bytes(2 * part)} of host memory, as much for a copy; "
            f"stall {stall / step:.1%} at every step, {stall / (interval + stall):.2%} every {interval / 60:.0f} min; "
            f"replication takes the link {copied / (interval + stall):.2%} of the time"
        )


def best(work) -> float:  # type: ignore[no-untyped-def]
    """Return the least seconds of several runs."""
    found = []
    for _ in range(7):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return min(found)


if __name__ == "__main__":
    main()
