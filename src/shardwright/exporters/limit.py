"""What a target cannot run of a plan, as a value: where, why, and the settings that mend it."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.errors import Problem


@dataclass(frozen=True, slots=True)
class Limit(Problem):
    """A problem that settings of the search mend: `pins`, as `--set` takes them (`sharding=zero2,zero3`)."""

    pins: str = ""


def limit(path: str, message: str, pins: str) -> Limit:
    """Return a limit, whose hint is the flag of its pins."""
    return Limit(path, message, f"--set {pins}", pins)
