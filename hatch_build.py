"""Writes the commit that a wheel or an sdist is built from into `shardwright/commit.txt`, which `--version` shows."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {"wheel": "shardwright/commit.txt", "sdist": "src/shardwright/commit.txt"}


class CommitHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not Path(self.root, ".git").exists():
            return
        describe = ["git", "-C", self.root, "describe", "--always", "--dirty", "--abbrev=12"]
        try:
            commit = subprocess.run(describe, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return
        file = Path(tempfile.mkdtemp(), "commit.txt")
        file.write_text(commit, encoding="utf-8")
        build_data["force_include"][str(file)] = PLACES[self.target_name]
