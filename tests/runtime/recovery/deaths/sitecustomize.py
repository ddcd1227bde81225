"""A process dies inside a function when it is told to: while the file `$DEATHS/NAME` is there, whoever comes to that
place takes it away and is killed. Workers die alone, keepers with all processes of their machine."""

import importlib.abc
import importlib.util
import os
import signal
import sys
from functools import wraps
from pathlib import Path
from typing import Any

RECOVERY = "shardwright.runtime.recovery"
WORKER, MACHINE = False, True
PLACES = {
    "shardwright.runtime.state.optimizer": [("optimizer", "_adamw", WORKER)],
    f"{RECOVERY}.handover": [("snapshot", "Writer._copy", WORKER), ("taking back", "take_back", WORKER)],
    f"{RECOVERY}.tiers": [("upload", "Cloud.put", MACHINE), ("disk", "DiskTier.write", MACHINE)],
    f"{RECOVERY}.duties": [
        ("copy", "Duties._copy", MACHINE),
        ("transfer", "Duties._fetch", MACHINE),
        ("start", "Duties._start", MACHINE),
        ("settle", "Duties._settle", MACHINE),
    ],
    f"{RECOVERY}.passage": [
        ("plan", "Passage._surviving", MACHINE),
        ("quorum", "Passage._claim", MACHINE),
    ],
}


class Deaths(importlib.abc.MetaPathFinder):
    """Wraps functions of the modules named in PLACES once they are imported."""

    def find_spec(self, name, path, target=None):
        if name not in PLACES:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        run = spec.loader.exec_module

        def execute(module):
            run(module)
            for place, function, machine in PLACES[name]:
                owner, _, attribute = function.rpartition(".")
                holder = getattr(module, owner) if owner else module
                setattr(holder, attribute, _mortal(getattr(holder, attribute), place, machine))

        spec.loader.exec_module = execute
        return spec


def _mortal(function, place, machine):
    file = Path(os.environ["DEATHS"], place)

    @wraps(function)
    def wrapped(*arguments, **options):
        try:
            file.unlink()
        except FileNotFoundError:
            return function(*arguments, **options)
        os.killpg(0, signal.SIGKILL) if machine else os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("dead")

    return wrapped


if "DEATHS" in os.environ:
    sys.meta_path.insert(0, Deaths())
