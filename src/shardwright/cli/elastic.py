"""`shardwright train --elastic`: the keeper of one machine."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardwright.cli.train_input import require_input
from shardwright.cli.train_options import FleetOptions
from shardwright.errors import bad

if TYPE_CHECKING:
    from shardwright.plans.plan import Plan
    from shardwright.runtime.job.settings import Settings

SECRET, FEWEST_CHARACTERS = "SHARDWRIGHT_SECRET", 16
MAKE_SECRET = "openssl rand -hex 32 > FILE && chmod 600 FILE"


def present_device(name: str | None) -> Literal["cpu", "cuda"]:
    """Return the device of a name, or the GPU if the machine has one: found without PyTorch, which a keeper has not."""
    if name not in (None, "cpu", "cuda"):
        raise bad(f"--device {name}", "is not known", "cuda (also for AMD's ROCm) or cpu")
    there = any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/kfd"))
    return "cuda" if name == "cuda" or (name is None and there) else "cpu"


def run_elastic(plan: Plan, settings: Settings, fleet: FleetOptions, logs: Path | None) -> int:
    """Keep this machine until the training is done, and return the exit status."""
    from shardwright.recovery.quorum import Machine
    from shardwright.runtime.job.lock import locked
    from shardwright.runtime.recovery.keeper.keeper import keep
    from shardwright.runtime.recovery.keeper.preemption import service_of
    from shardwright.runtime.recovery.run import KeeperOptions
    from shardwright.runtime.recovery.state.cloud import require_claims
    from shardwright.runtime.storage.manifest import newest_manifest

    host, port = address_of("--listen", fleet.listen)
    secret = secret_of(fleet.secret_file)
    require_secret(secret, fleet.listen, host)
    gpu, gpus = _gpus(plan, fleet.machine_gpu)
    name = fleet.name or socket.gethostname()
    machine = Machine(name=name, host=host, port=port, gpu=gpu, gpus=gpus, zone=fleet.zone)
    if settings.resume is not None:  # all ranks go on from the same one, or none does
        settings = replace(settings, resume=newest_manifest(settings.resume)[0].resolve())
    options = KeeperOptions(
        machine=machine,
        join=tuple(address_of("--join", item) for item in fleet.join.split(",") if item) or ((host, port),),
        plan=plan,
        settings=settings,
        memory=fleet.memory or Path(f"/dev/shm/shardwright-{name}-{port}"),
        disk=settings.out / "state",
        upload=fleet.upload,
        etcd=tuple(address_of("--etcd", item) for item in fleet.etcd.split(",") if item),
        snapshot_every=fleet.snapshot_every,
        silence_seconds=fleet.silence,
        beat_seconds=min(fleet.silence / 8, 0.5),
        wait_seconds=fleet.wait,
        notices=tuple(service_of(item) for item in fleet.notices.split(",") if item),
        logs=logs,
        secret=secret,
    )
    require_input(plan, settings)
    if fleet.upload and not fleet.etcd:
        require_claims(fleet.upload)
    with locked(settings.out):
        return keep(options)


def secret_of(file: Path | None) -> bytes:
    """Return the secret of a run: what is in the file, else in the environment, b"" for none. Raises SpecError where it
    is too short to be one, or the file cannot be read."""
    try:
        text = os.environ.get(SECRET, "") if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise bad(f"--secret-file {file}", f"cannot be read: {error}", f"make one: {MAKE_SECRET}") from None
    secret = text.strip()
    if len(secret) < FEWEST_CHARACTERS and (secret or file is not None):
        where = f"${SECRET}" if file is None else f"--secret-file {file}"
        raise bad(where, f"has fewer than {FEWEST_CHARACTERS} characters", f"make one: {MAKE_SECRET}")
    return secret.encode()


def require_secret(secret: bytes, listen: str, host: str) -> None:
    """Raise SpecError where other machines could reach a keeper that has no secret: it would end the run, or hand out
    its weights, for anybody who asks."""
    if secret or _loopback(host):
        return
    message = "anybody who reaches this address could end the run or read its weights, as it has no secret"
    hint = f"{MAKE_SECRET}; then give all machines --secret-file FILE, or ${SECRET}"
    raise bad(f"--listen {listen}", message, hint)


def _loopback(host: str) -> bool:
    """Return whether a host is this machine alone."""
    try:
        addresses = {str(item[4][0]) for item in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ip_address(address.partition("%")[0]).is_loopback for address in addresses)


def address_of(option: str, text: str) -> tuple[str, int]:
    """Return HOST:PORT as a pair. Raises SpecError where it is none."""
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise bad(f"{option} {text}", "is no HOST:PORT", "give a name or address that the other machines know")
    return host, int(port)


def _gpus(plan: Plan, gpu: str) -> tuple[str, int]:
    """Return the GPU type of this machine, and how many of them the plan's cluster says that it has."""
    pools = plan.cluster.pool_of
    if not gpu and len(pools) > 1:
        raise bad("--machine-gpu", f"the plan has {len(pools)} GPU types", f"one of {', '.join(pools)}")
    name = gpu or next(iter(pools))
    if name not in pools:
        raise bad(f"--machine-gpu {gpu}", "is no type of the plan", f"one of {', '.join(pools)}")
    return name, pools[name].gpus_per_node
