"""What the checks have in common: cases on standard input, results into the file that the argument names.

A case is {"name", "files": {name: text}, "world_size"}; its result is {"name", "values"} or {"name", "error"}. What a
target prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def answer(values: Callable[[dict[str, str], int], dict[str, Any]]) -> None:
    """Answer every case by what a target makes of its files, `values`; whatever that raises is an answer too."""
    results = []
    with contextlib.redirect_stdout(sys.stderr):
        for case in json.load(sys.stdin):
            try:
                results.append({"name": case["name"], "values": values(case["files"], case["world_size"])})
            except (Exception, SystemExit) as error:
                traceback.print_exc()
                results.append({"name": case["name"], "error": f"{type(error).__name__}: {error}"})
    Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")
