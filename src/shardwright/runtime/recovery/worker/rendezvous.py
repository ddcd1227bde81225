"""Process groups that are torn down and built again inside a living process, on a key-value store whose values a keeper
holds: no worker hosts what all depend on (PyTorch).

A rank blocked in a gloo operation hears of a lost peer only when a neighbour tears down, and never where the peer was
stopped or its link cut. So a thread cuts the sockets that gloo opened, and the operation fails at once, save
for races inside gloo (`training`). NCCL's operations end when their communicators are aborted, which needs
TORCH_NCCL_ASYNC_ERROR_HANDLING=0: any other mode ends the process."""

from __future__ import annotations

import base64
import datetime
import fcntl
import gc
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shardwright.runtime.job.worker import group_of_all
from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.layout.process_groups import ProcessGroups, make_process_groups, with_meeting
from shardwright.runtime.recovery.wire import Message

SIOCGIFADDR = 0x8915  # Linux: the address of an interface
DESCRIPTORS = Path("/proc/self/fd")
FORMING_SECONDS = 30.0  # so long groups may take once all ranks are there; eleven took 0.1 to 1.2 s
NCCL_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "NCCL_ASYNC_ERROR_HANDLING": "0",
}


class Sockets:
    """The sockets that were opened while groups were made, by the name that the kernel gives each."""

    def __init__(self) -> None:
        self._before = dict(_open_sockets())
        self._mine: dict[str, int] = {}

    def remember(self) -> None:
        """Take those that are there now and were not at the beginning."""
        self._mine = _since(self._before)

    def cut(self) -> int:
        """Shut down every connection among them, and return how many. Blocked operations fail at once."""
        return sum(_cut(name, number) for name, number in (self._mine or _since(self._before)).items())


def environment(host: str) -> None:
    """Set what gloo and NCCL read at their start: the network of this machine's keeper, at `host`, and that a failure
    of NCCL can be outlived."""
    for name, value in NCCL_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    interface = _interface_of(host)
    if interface:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, interface)


def form(
    layout: Layout,
    rank: int,
    store: Any,
    device: torch.device,
    limit: datetime.timedelta,
    sockets: Sockets,
    late: Callable[[], None],
) -> ProcessGroups:
    """Return all groups of a layout for a rank, made anew on the store of their generation; `sockets` gets to know
    theirs.

    Raises RuntimeError where a peer does not come. `limit` is that of every operation on them. `late` is called where
    all ranks are there, and their groups are not made in time.
    """
    if store.add("ranks here", 1) == layout.world_size:
        store.set("all here", "")
    store.wait(["all here"], limit)
    alarm = threading.Timer(FORMING_SECONDS, late)
    alarm.daemon = True
    alarm.start()
    try:
        group_of_all(store, rank, layout.world_size, device, limit)
        groups = with_meeting(make_process_groups(layout, rank, timeout=limit))
    finally:
        alarm.cancel()
    sockets.remember()
    return groups


def interrupt(sockets: Sockets, device: torch.device) -> None:
    """Make this process's blocked communication fail, from another thread than its own.

    The group of all ranks, in which they vote, goes first: what an aborted group returns of gradients must not come to
    a vote that still counts this rank.
    """
    if device.type == "cuda":
        with suppress(RuntimeError, ValueError, AttributeError):
            for group in list(dist.distributed_c10d._world.pg_map):  # in the order in which they were made
                group.abort()
    sockets.cut()


def torn_down(seconds: float) -> bool:
    """Destroy all groups, and return whether that is done within so many seconds: a group of gloo waits for operations
    that may never end (`training`). Nobody may hold a Work or a group any more."""
    thread = threading.Thread(target=_tear_down, name="tearing down", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _tear_down() -> None:
    gc.collect()
    if dist.is_initialized():
        with suppress(RuntimeError, ValueError):
            dist.destroy_process_group()
    # Groups are found by names that count them, the same on all ranks. A group that was halted while it was made is
    # none to destroy, but has been counted.
    dist.distributed_c10d._world.group_count = 0
    gc.collect()


def _interface_of(host: str) -> str:
    """Return which network interface has the address of a host, "" if none has."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        address = socket.inet_aton(socket.gethostbyname(host))
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if answer[20:24] == address:
                    return name
    return ""


def _open_sockets() -> Iterator[tuple[str, int]]:
    for number in os.listdir(DESCRIPTORS):
        with suppress(OSError):
            name = os.readlink(DESCRIPTORS / number)
            if name.startswith("socket:"):
                yield name, int(number)


def _since(before: dict[str, int]) -> dict[str, int]:
    """Return the sockets opened since then, for a process that is halted while it makes its groups."""
    return {name: number for name, number in _open_sockets() if name not in before}


def _cut(name: str, number: int) -> bool:
    """Shut a connection down, if the descriptor is still that of this socket, and no listener or local one."""
    with suppress(OSError):
        if os.readlink(DESCRIPTORS / str(number)) != name:
            return False
        with socket.socket(fileno=os.dup(number)) as connection:
            network = connection.family in (socket.AF_INET, socket.AF_INET6)
            if not network or connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


# Sends `what` with keys, seconds or an amount and a payload to the keeper; raises where the generation is over.
Ask = Callable[..., tuple[Message, bytes]]


class GenerationStore(dist.Store):  # type: ignore[misc,name-defined]
    """A store as `torch.distributed.init_process_group` takes it. `ask` blocks the calling thread alone."""

    def __init__(self, ask: Ask, seconds: float) -> None:
        super().__init__()
        self._ask, self._seconds = ask, seconds

    def set(self, key: str, value: Any) -> None:
        self._ask("set", payload=_bytes(value), key=key)

    def get(self, key: str) -> bytes:
        return self._ask("get", key=key, seconds=self._seconds)[1]

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", key=key, amount=amount)[0]["value"])

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("check", keys=list(keys))[0]["value"])

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        self._ask("wait", keys=list(keys), seconds=seconds)

    def compare_set(self, key: str, expected: Any, wanted: Any) -> bytes:
        before = base64.b64encode(_bytes(expected)).decode()
        return self._ask("compare_set", payload=_bytes(wanted), key=key, expected=before)[1]

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._seconds = timeout.total_seconds()

    @property
    def timeout(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self._seconds)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
