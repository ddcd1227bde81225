"""Machines as network namespaces: each has a link of its own to a switch, which can be cut, and sees no folder of
another's. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

NETWORKS = count()
ALONE = """
mount --bind "$1" /mnt && mount -t tmpfs none "$0" && mkdir "$1" && mount --move /mnt "$1" && shift && exec "$@"
"""


class Network:
    """So many machines, at addresses of their own."""

    def __init__(self, machines: int) -> None:
        number = os.getpid() + next(NETWORKS)  # the kernel takes its time to delete one
        self._id, self._subnet = f"sw{number % 10_000_000}", f"10.{number // 250 % 250}.{number % 250}"
        self._count = machines

    def address(self, index: int) -> str:
        return f"{self._subnet}.{index + 2}"

    def command(self, index: int, folder: Path, place: Path, words: Sequence[str]) -> list[str]:
        """Return a command on a machine, which sees of a folder only its own place in it."""
        alone = ["unshare", "--mount", "sh", "-c", ALONE, str(folder), str(place)]
        return ["ip", "netns", "exec", self._machine(index), *alone, *words]

    def cut(self, index: int) -> None:
        """Let nothing reach a machine any more, nor leave it."""
        _ip("link", "set", f"{self._machine(index)}", "down")

    def mend(self, index: int) -> None:
        _ip("link", "set", f"{self._machine(index)}", "up")

    def throttle(self, link: float, outside: float) -> None:
        """Have machines send and receive `link` bytes a second, and receive `outside` from the gateway."""
        for index in range(self._count):
            name = self._machine(index)
            for words in (("-n", name), ()):
                device = "eth0" if words else name
                _run("tc", *words, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "10")
                for number, rate in (("1:10", link), ("1:20", outside)):
                    size = ("htb", "rate", f"{rate:.0f}bps", "burst", "64k", "quantum", "60000")
                    _run("tc", *words, "class", "add", "dev", device, "parent", "1:", "classid", number, *size)
            match = ("u32", "match", "ip", "src", f"{self.gateway}/32", "flowid", "1:20")
            _run("tc", "filter", "add", "dev", name, "parent", "1:", "protocol", "ip", "prio", "1", *match)

    @property
    def gateway(self) -> str:
        """The address of what is outside."""
        return f"{self._subnet}.1"

    def _machine(self, index: int) -> str:
        return f"{self._id}-{index}"

    def make(self) -> None:
        """Make switch and machines. Raises CalledProcessError without rights."""
        _ip("link", "add", self._id, "type", "bridge")
        _ip("address", "add", f"{self.gateway}/24", "dev", self._id)
        _ip("link", "set", self._id, "up")
        for index in range(self._count):
            name = self._machine(index)
            _ip("netns", "add", name)
            _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", name, "master", self._id, "up")
            _ip("-n", name, "address", "add", f"{self.address(index)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")

    def delete(self) -> None:
        names = [self._machine(index) for index in range(self._count)]
        links = [("link", "delete", name) for name in (*names, self._id)]
        for words in (*(("netns", "delete", name) for name in names), *links):
            subprocess.run(["ip", *words], capture_output=True, check=False)


@contextmanager
def network(machines: int) -> Iterator[Network]:
    """Yield machines. Skips the test where there are no rights to make them."""
    made = Network(machines)
    try:
        try:
            made.make()
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            pytest.skip(f"no rights to make network namespaces: {error}")
        yield made
    finally:
        made.delete()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, capture_output=True, check=True)
