"""What an exporter gives: files for a target, and the same as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Files by name, the main one first, for release `version` of a target. `document` is what `export --json` prints
    beside target and version."""

    target: str
    version: str
    files: Mapping[str, str]
    document: Mapping[str, object]

    @property
    def main(self) -> str:
        """The text of the main file."""
        return next(iter(self.files.values()))
