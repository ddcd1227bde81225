"""`shardwright train --elastic`: the keeper of one machine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardwright.errors import bad

if TYPE_CHECKING:
    from shardwright.plans.plan import Plan
    from shardwright.runtime.job.settings import Settings


def present_device(name: str | None) -> Literal["cpu", "cuda"]:
    """Return the device of a name, or the GPU if the machine has one: found without PyTorch, which a keeper has not."""
    if name not in (None, "cpu", "cuda"):
        raise bad(f"--device {name}", "is not known", "cuda (also for AMD's ROCm) or cpu")
    there = any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/kfd"))
    return "cuda" if name == "cuda" or (name is None and there) else "cpu"


def run_elastic(
    plan: Plan,
    settings: Settings,
    *,
    listen: str,
    join: str,
    name: str,
    zone: str,
    gpu: str,
    memory: Path | None,
    upload: str,
    etcd: str,
    snapshot_every: int,
    silence_seconds: float,
    wait_seconds: float,
    notices: str,
    logs: Path | None,
) -> int:
    """Keep this machine until the training is done, and return the exit status."""
    from shardwright.recovery.quorum import Machine
    from shardwright.runtime.job.trackers import require_trackers
    from shardwright.runtime.recovery.keeper import keep
    from shardwright.runtime.recovery.notices import service_of
    from shardwright.runtime.recovery.options import KeeperOptions

    require_trackers(settings)
    host, port = address_of("--listen", listen)
    gpu, gpus = _gpus(plan, gpu)
    name = name or socket.gethostname()
    settings.out.mkdir(parents=True, exist_ok=True)
    machine = Machine(name=name, host=host, port=port, gpu=gpu, gpus=gpus, zone=zone)
    others = [address_of("--join", item) for item in join.split(",") if item]
    return keep(
        KeeperOptions(
            machine=machine,
            join=tuple(others) or ((host, port),),
            plan=plan,
            settings=settings,
            memory=memory or Path(f"/dev/shm/shardwright-{name}-{port}"),
            disk=settings.out / "state",
            upload=upload,
            etcd=tuple(address_of("--etcd", item) for item in etcd.split(",") if item),
            snapshot_every=snapshot_every,
            silence_seconds=silence_seconds,
            beat_seconds=min(silence_seconds / 8, 0.5),
            wait_seconds=wait_seconds,
            notices=tuple(service_of(item) for item in notices.split(",") if item),
            logs=logs,
        )
    )


def address_of(option: str, text: str) -> tuple[str, int]:
    """Return HOST:PORT as a pair. Raises SpecError where it is none."""
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise bad(f"{option} {text}", "is no HOST:PORT", "give a name or address that the other machines know")
    return host, int(port)


def _gpus(plan: Plan, gpu: str) -> tuple[str, int]:
    """Return the GPU type of this machine, and how many of them the plan's cluster says that it has."""
    pools = {pool.gpu.name: pool for pool in plan.cluster.pools}
    if not gpu and len(pools) > 1:
        raise bad("--machine-gpu", f"the plan has {len(pools)} GPU types", f"one of {', '.join(pools)}")
    name = gpu or next(iter(pools))
    if name not in pools:
        raise bad(f"--machine-gpu {gpu}", "is no type of the plan", f"one of {', '.join(pools)}")
    return name, pools[name].gpus_per_node
