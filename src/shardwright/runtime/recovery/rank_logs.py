"""What a rank prints, in files of its own as well: `DIR/generation_3/RANK/stderr.log`. No PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

STREAMS = {1: "stdout.log", 2: "stderr.log"}
_before: dict[int, int] = {}
_copying: list[subprocess.Popen[bytes]] = []


def keep_log(folder: Path, generation: int, rank: int) -> None:
    """Have all that this process prints from now on in the files of a rank, beside where it went before. The copy is
    made by processes that outlive this one, so that its last words are there too."""
    own = folder / f"generation_{generation}" / str(rank)
    own.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream, name in STREAMS.items():
        before = _before.setdefault(stream, os.dup(stream))
        copying = subprocess.Popen(
            ["tee", "-a", str(own / name)], stdin=subprocess.PIPE, stdout=before, start_new_session=True
        )
        assert copying.stdin is not None, "it is a pipe"
        os.dup2(copying.stdin.fileno(), stream)
        copying.stdin.close()
        _copying.append(copying)
    _copying[:] = [copying for copying in _copying if copying.poll() is None]
