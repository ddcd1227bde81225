"""A lock on the folder of a run: two runs in one would remove each other's checkpoints. Needs no PyTorch.

The operating system holds it for the process that took it, and lets go of it however that process ends; the file also
says who that is.
"""

from __future__ import annotations

import errno
import fcntl
import getpass
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwright.errors import bad

LOCK = "lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder, which is made if it is not there. Raises SpecError where it cannot be, and with the
    owner's name where another process has it. Where the file system knows no locks, a message says so."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise bad(f"`out={folder}`", f"is no folder to write in: {error.strerror}", "name another folder") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, stop it, or name another folder"
            raise bad(f"`out={folder}`", f"another run writes there: {_owner(descriptor)}", hint) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            print(f"warning: {folder} cannot be locked ({error.strerror}): start no other run there", file=sys.stderr)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _self().encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _self() -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = str(os.getuid())
    return json.dumps({"user": user, "host": socket.gethostname(), "process": os.getpid(), "since": since}) + "\n"


def _owner(descriptor: int) -> str:
    """Return in words who has the lock."""
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {owner['process']} of {owner['user']} on {owner['host']}, since {owner['since']}"
    except (ValueError, KeyError, TypeError):  # it has taken the lock, and not yet said who it is
        return "it has only just started"
