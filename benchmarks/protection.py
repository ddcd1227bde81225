"""What protection costs: copying a snapshot, the stall of the step, copies on other machines, memory.

.venv/bin/python -m benchmarks.protection

The bandwidth of a snapshot is measured on this machine, beside a plain copy of as much; what it comes to is for the
best plans of real models, whose step times are predicted. The recommended interval is Daly's for a loss of 1 % of the
machines an hour, of which snapshots are taken a tenth early: hashing and copying have until then, at every step until
the next one's gradients are there. Link and way to the store are how much of their time, at the bandwidths of
`recovery.outlook.Rates`, copies on other machines and uploads take, and the way back where the store does not say the
MD5 of what it keeps. A machine has two snapshots in memory, the copy of another's part, and six blocks of what is sent.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

import shardwright
from shardwright.cost.money import checkpoint_bytes, optimal_interval_seconds
from shardwright.plans.plan import Plan
from shardwright.recovery.outlook import Rates
from shardwright.runtime.recovery.state.cloud import BLOCK_BYTES, checksum
from shardwright.runtime.recovery.state.snapshots import reserve
from shardwright.runtime.recovery.worker.snapshot import EARLY
from shardwright.runtime.storage.manifest import hash_of
from shardwright.units import format_bytes

SIZES = (("llama-2-7b", 8), ("llama-2-13b", 8), ("llama-2-70b", 16))
RATES = Rates()
HEAD = (
    "model",
    "a machine's part",
    "host memory",
    "interval",
    "stall at every step",
    "stall",
    "link",
    "way to the store",
    "and back",
)
ROW = "| " + " | ".join(("{}",) * len(HEAD)) + " |"


def main() -> None:
    """Print what a snapshot costs: bandwidth, stall, replication, memory."""
    values = torch.randn(64 << 20)
    path = Path("/dev/shm/shardwright-benchmark.bin")
    try:
        reserve(path, values.numel() * 4)
        memory = torch.from_numpy(np.memmap(path, dtype=np.float32, mode="r+", shape=(values.numel(),)))
        other = torch.empty_like(values)
        snapshot, plain = (best(lambda target=target: target.copy_(values)) for target in (memory, other))
        hashing, md5 = best(lambda: hash_of(memory.numpy().data)), best(lambda: checksum([memory.numpy().data]))
    finally:
        path.unlink(missing_ok=True)
    size = values.numel() * 4 / 1e9
    rates = {"snapshot": size / snapshot, "a plain copy": size / plain, "hashing": size / hashing, "MD5": size / md5}
    print(", ".join(f"{what} {rate:.1f} GB/s" for what, rate in rates.items()) + "\n")
    print(ROW.format(*HEAD) + "\n" + ROW.format(*("---",) * len(HEAD)))
    for name, machines in SIZES:
        plan = plan_of(name, machines)
        part = checkpoint_bytes(plan.model, plan.job) / machines
        stall, step = part / (size / snapshot * 1e9), plan.iteration_seconds
        loss = np.array([machines * 0.01 / 3600.0])
        interval = float(optimal_interval_seconds(loss, np.array([stall]))[0])
        copied = part / RATES.link if plan.optimizer.distributed else 0.0
        protected, early = part / (size / hashing * 1e9) + copied, EARLY * interval
        at_every_step, at_interval = (stall + max(protected - free, 0.0) for free in (step, early))
        every = interval - early + at_interval
        sent = part / RATES.cloud / every
        shares = (at_every_step / step, at_interval / every, copied / every, sent, sent)
        sizes = (format_bytes(part), format_bytes(2 * part + (part if copied else 0.0) + 6 * BLOCK_BYTES))
        print(ROW.format(name, *sizes, f"{interval / 60:.0f} min", *(f"{share:.1%}" for share in shares)))


def plan_of(model: str, machines: int) -> Plan:
    """Return the best plan of a model with whole copies of the optimizer, so that losses can be outlived."""
    cluster = shardwright.load_cluster(f"{machines}x8xA100-SXM-80")
    return shardwright.plan(
        shardwright.load_model(model), cluster, shardwright.make_job(global_batch=256, seq_len=4096)
    ).best


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
