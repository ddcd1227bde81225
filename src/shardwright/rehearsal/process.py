"""The process in which a trainer's code runs: one rank, within limits of time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shardwright.errors import Problem, SpecError, bad

ENTRY = Path(__file__).parent / "inside" / "entry.py"
LAST_LINES = 6


class NoRoomError(Exception):
    """A rehearsal needs more host memory or time than it is given."""


def asked(question: dict[str, Any], *, python: str | None, seconds: float, limit_bytes: float) -> dict[str, Any]:
    """Return the answer to a question, of the interpreter `python` (None: this one).

    Raises SpecError for what is missing or refused, and where the trainer's code ends in an error; NoRoomError where it
    needs more than `seconds` or `limit_bytes` of host memory.
    """
    with tempfile.TemporaryDirectory(prefix="shardwright-rehearsal-") as folder:
        ask, answer = Path(folder) / "question.json", Path(folder) / "answer.json"
        ask.write_text(json.dumps(question | {"limit_bytes": limit_bytes}), encoding="utf-8")
        interpreter = sys.executable if python is None else os.path.abspath(os.path.expanduser(python))
        command = [interpreter, str(ENTRY), str(ask), str(answer)]
        environment = {
            name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        }
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", cwd=folder,
                timeout=seconds, env=environment | {"CUDA_VISIBLE_DEVICES": ""},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NoRoomError(f"rank {question['rank']} took over `time_limit={seconds:g}` seconds") from None
        except OSError as error:
            raise bad(f"`python={python}`", f"cannot be started: {error.strerror}", "name an interpreter") from None
        if not answer.is_file() or not answer.stat().st_size:
            raise _died(done, question, limit_bytes)
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "refused" in result:
        raise SpecError(Problem(**result["refused"]))
    if "out_of_memory" in result:
        raise _no_memory(question, limit_bytes)
    if "failed" in result:
        where = [line.strip() for line in result["trace"].splitlines() if line.strip().startswith("File ")][-1:]
        message = f"the trainer's own code ended in {result['failed'][:400]}" + "".join(f" at {line}" for line in where)
        raise bad(f"rank {question['rank']}", message, "the plan would not start so, or a rehearsal lacks a stand-in")
    return result


def _died(done: subprocess.CompletedProcess[str], question: dict[str, Any], limit_bytes: float) -> Exception:
    """Return what to raise where a process ended without an answer."""
    last = " ".join(done.stderr.strip().splitlines()[-LAST_LINES:])
    if "MemoryError" in last or (done.returncode < 0 and "alloc" in last):
        return _no_memory(question, limit_bytes)
    message = f"ended with status {done.returncode} and no answer: {last[-400:] or 'nothing was said'}"
    return bad("the process of the rehearsal", message, "Python 3.11 or newer with the trainer runs it; see `python=`")


def _no_memory(question: dict[str, Any], limit_bytes: float) -> NoRoomError:
    return NoRoomError(f"rank {question['rank']} needs over `memory_limit={limit_bytes / 1e9:g}` GB of host memory")
