"""Whoever answers is asked: SLURM, Kubernetes, else this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.discovery.document import Ask, MachineGroup, cluster_text, known, unseen
from shardwright.discovery.kubernetes import kubernetes_machines
from shardwright.discovery.local import this_machine
from shardwright.discovery.slurm import slurm_machines
from shardwright.errors import bad, suggestion

PATIENCE_SECONDS = 30.0
SOURCES: Mapping[str, tuple[str, Callable[[Ask], tuple[MachineGroup, ...]]]] = {
    "slurm": ("SLURM, by scontrol", slurm_machines),
    "kubernetes": ("Kubernetes, by kubectl", kubernetes_machines),
    "local": ("this machine, by nvidia-smi", this_machine),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What was found: groups of machines, who said so, the cluster file, and what could not be seen."""

    machines: tuple[MachineGroup, ...]
    source: str
    text: str
    unseen: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether the catalogue knows every GPU, so that the file can be planned with."""
        return all(known(group) is not None for group in self.machines)


def discover(source: str | None = None, *, ask: Ask | None = None) -> Discovery:
    """Return the machines that `source` ("slurm", "kubernetes" or "local") knows, else those of the first of them that
    knows any. Raises SpecError for an unknown source, and where nobody knows a GPU."""
    if source is not None and source not in SOURCES:
        raise bad(f"`from={source}`", "is not known", suggestion(source, SOURCES))
    for name in [source] if source else SOURCES:
        words, find = SOURCES[name]
        machines = find(ask or answer)
        if machines:
            return Discovery(
                machines=machines, source=name, text=cluster_text(machines, words), unseen=unseen(machines)
            )
    asked = SOURCES[source][0] if source else "scontrol, kubectl and nvidia-smi"
    raise bad("discover", f"no GPU was found ({asked})", "run it where the GPUs are, or write a cluster file by hand")


def answer(command: Sequence[str]) -> str | None:
    """Return what a command prints; None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")
