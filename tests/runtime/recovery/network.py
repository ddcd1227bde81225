"""Machines as network namespaces: each has a link of its own to a switch, which can be cut, and sees no folder of
another's. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ALONE = """
mount --bind "$1" /mnt && mount -t tmpfs none "$0" && mkdir "$1" && mount --move /mnt "$1" && shift && exec "$@"
"""


class Network:
    """So many machines, at addresses of their own."""

    def __init__(self, count: int) -> None:
        self._id, self._subnet = f"sw{os.getpid() % 100_000}", f"10.77.{os.getpid() % 250}"
        self._count = count

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

    def _machine(self, index: int) -> str:
        return f"{self._id}-{index}"

    def make(self) -> None:
        """Make switch and machines. Raises CalledProcessError without rights."""
        _ip("link", "add", self._id, "type", "bridge")
        _ip("address", "add", f"{self._subnet}.1/24", "dev", self._id)
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
        for words in (*(("netns", "delete", self._machine(n)) for n in range(self._count)), ("link", "del", self._id)):
            subprocess.run(["ip", *words], capture_output=True, check=False)


@contextmanager
def network(count: int) -> Iterator[Network]:
    """Yield machines. Skips the test where there are no rights to make them."""
    made = Network(count)
    try:
        try:
            made.make()
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            pytest.skip(f"no rights to make network namespaces: {error}")
        yield made
    finally:
        made.delete()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, check=True)
