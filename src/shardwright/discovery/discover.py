"""Whoever answers is asked: SLURM, Kubernetes, else this machine; or files in which their answers are recorded."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from shardwright.discovery.document import (
    Ask,
    MachineGroup,
    Node,
    assumed,
    cluster_text,
    grouped,
    known,
    left_out,
    unseen,
)
from shardwright.discovery.recorded import LISTINGS, recorded_nodes
from shardwright.discovery.sources import kubernetes_nodes, local_nodes, slurm_nodes
from shardwright.errors import bad, suggestion
from shardwright.records import record

PATIENCE_SECONDS = 30.0
SOURCES: Mapping[str, tuple[str, Callable[[Ask], tuple[Node, ...]]]] = {
    "slurm": ("SLURM, by scontrol", slurm_nodes),
    "kubernetes": ("Kubernetes, by kubectl", kubernetes_nodes),
    "local": ("this machine, by nvidia-smi", local_nodes),
}


@record
class Discovery:
    """What machines there are: groups of machines, who said so, the cluster file, what could not be seen, which nodes
    and parts of GPUs are left out and why, and what had to be assumed or is contradicted."""

    machines: tuple[MachineGroup, ...]
    source: str
    text: str
    unseen: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the catalogue knows every GPU, so that the file can be planned with."""
        return all(known(part) is not None for group in self.machines for part in group.by_type)


def discover(source: str | None = None, *, files: Sequence[str] = (), ask: Ask | None = None) -> Discovery:
    """Return the machines that `source` ("slurm", "kubernetes" or "local") knows, else those of the first of them that
    knows any. With `files`, those that recorded output describes: of "slurm", "kubernetes" or "nvidia-smi"
    (`discovery.recorded`). Raises SpecError for an unknown source, and where nobody knows a GPU that takes work."""
    known_sources = LISTINGS if files else SOURCES
    if source == "nvidia-smi" and not files:
        raise bad("`from=nvidia-smi`", "reads only recorded output", "give files, or use local")
    if source is not None and source not in known_sources:
        raise bad(f"`from={source}`", "is not known", suggestion(source, known_sources))
    if files:
        name, nodes, notes = recorded_nodes(source, files)
        return _discovery(name, f"{name}, recorded in {len(files)} file{'s' * (len(files) > 1)}", nodes, notes)
    out: tuple[str, ...] = ()
    for name in [source] if source else SOURCES:
        words, find = SOURCES[name]
        nodes = find(ask or answer)
        if grouped(nodes):
            return _discovery(name, words, nodes, ())
        out = (*out, *left_out(nodes))
    raise _nobody(SOURCES[source][0] if source else "scontrol, kubectl and nvidia-smi", out)


def discovery_document(seen: Discovery) -> dict[str, Any]:
    lists = {name: list(getattr(seen, name)) for name in ("unseen", "left_out", "notes")}
    machines = [asdict(group) for group in seen.machines]
    return {"source": seen.source, "machines": machines, **lists, "text": seen.text}


def _discovery(name: str, words: str, nodes: Sequence[Node], notes: tuple[str, ...]) -> Discovery:
    machines, out = grouped(nodes), left_out(nodes)
    if not machines:
        raise _nobody(words, out)
    decided = tuple(note for node in nodes if not node.gone for note in node.notes)
    return Discovery(
        machines=machines,
        source=name,
        text=cluster_text(machines, words),
        unseen=unseen(machines),
        left_out=out,
        notes=(*assumed(machines), *decided, *notes),
    )


def _nobody(asked: str, out: Sequence[str]) -> Exception:
    if out:
        return bad(
            "discover", f"no GPU takes work ({asked}): {'; '.join(out)}", "wait for nodes, or write a cluster file"
        )
    hint = "run it where the GPUs are, or write a cluster file by hand"
    return bad("discover", f"no GPU was found ({asked})", hint)


def answer(command: Sequence[str]) -> str | None:
    """Return what a command prints; None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")
