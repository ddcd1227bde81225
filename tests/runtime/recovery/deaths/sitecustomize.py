"""A process dies or hangs inside a function when it is told to: while the file `$DEATHS/NAME` is there, whoever comes to
that place takes it away, and that is its end. Workers die alone, and when the function has done its work (an update of
half the weights); keepers with all processes of their machine."""

import asyncio
import faulthandler
import importlib.abc
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

RECOVERY = "shardwright.runtime.recovery"
WORKER, MACHINE, THREAD, FULL = "worker", "machine", "thread", "full"
PLACES = {
    "shardwright.runtime.step.sync": [
        ("stuck", "GradientSync.finish", THREAD),
        ("out of memory", "GradientSync.pass_done", FULL),
    ],
    "shardwright.runtime.state.optimizer": [("optimizer", "METHODS.adamw", WORKER)],
    f"{RECOVERY}.worker.snapshot": [("snapshot", "Writer._copy", WORKER), ("taking back", "take_back", WORKER)],
    f"{RECOVERY}.state.cloud": [("upload", "Cloud.put", MACHINE)],
    f"{RECOVERY}.state.snapshots": [("disk", "DiskTier.write", MACHINE)],
    f"{RECOVERY}.keeper.coordinator_requests": [
        ("transfer", "CoordinatorRequests._fetch", MACHINE),
        ("start", "CoordinatorRequests._start", MACHINE),
        ("settle", "CoordinatorRequests._settle", MACHINE),
    ],
    f"{RECOVERY}.keeper.protection": [("copy", "Protection.copy", MACHINE)],
    f"{RECOVERY}.change.generation_change": [("plan", "GenerationChange._surviving", MACHINE)],
    f"{RECOVERY}.fleet.claims": [("quorum", "QuorumCheck.require", MACHINE)],
}


ENDS: dict[str, Callable[[], object]] = {
    WORKER: lambda: os.kill(os.getpid(), signal.SIGKILL),
    MACHINE: lambda: os.killpg(0, signal.SIGKILL),
    THREAD: threading.Event().wait,
    FULL: lambda: _out_of_memory(),
}


def _out_of_memory():
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB")


class Deaths(importlib.abc.MetaPathFinder):
    """Wraps functions of the modules named in PLACES once they are imported, or at once where they are already: in a
    process that began warm."""

    def __init__(self):
        for name in PLACES:
            if name in sys.modules:
                _wrap(sys.modules[name])

    def find_spec(self, name, path, target=None):
        if name not in PLACES:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        run = spec.loader.exec_module

        def execute(module):
            run(module)
            _wrap(module)

        spec.loader.exec_module = execute
        return spec


def _wrap(module):
    for place, function, victim in PLACES[module.__name__]:
        owner, _, attribute = function.rpartition(".")
        holder = getattr(module, owner) if owner else module
        if isinstance(holder, dict):
            holder[attribute] = _mortal(holder[attribute], place, victim)
            continue
        before = getattr(holder, attribute)
        mortal = _mortal(before, place, victim)
        for place_of in [holder] if owner else _holders(attribute, before):
            setattr(place_of, attribute, mortal)


def _holders(name, function):
    """Return the modules that have a function by its name: its own, and those that have imported it."""
    return [module for module in list(sys.modules.values()) if getattr(module, "__dict__", {}).get(name) is function]


def _mortal(function, place, victim):
    file = Path(os.environ["DEATHS"], place)

    @wraps(function)
    def wrapped(*arguments, **options):
        try:
            file.unlink()
        except FileNotFoundError:
            return function(*arguments, **options)
        if victim == WORKER:
            function(*arguments, **options)
        ENDS[victim]()
        raise AssertionError("dead")

    return wrapped


def _tell(*_):
    """Print what a process waits for: the tasks of its loop, if it has one, and then all threads."""
    with suppress(RuntimeError):
        for task in asyncio.all_tasks():
            task.print_stack(limit=3)


if "DEATHS" in os.environ:
    sys.meta_path.insert(0, Deaths())
    signal.signal(signal.SIGUSR1, _tell)  # so that a run which hangs can be asked where
    faulthandler.register(signal.SIGUSR1, chain=True)
if "REMOTE" in os.environ:  # the tests' own object store
    import fsspec

    fsspec.register_implementation("remote", "tests.runtime.recovery.store.Remote")
