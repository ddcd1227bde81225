"""The process of a rehearsal: one rank, one step. Run as a file by the interpreter that has the trainer:

    python entry.py QUESTION.json ANSWER.json

The question has the trainer, the plan, the rank, the size of the job and the GPU that is played. The answer has the
figures, or what is refused (`refused`), or how the trainer's code ended (`failed`).
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
import traceback
import types
import warnings
from pathlib import Path
from typing import Any

RUNNERS = {
    "train": "own_runtime", "fsdp": "transformers_fsdp", "megatron": "megatron_core",
    "torchtitan": "torchtitan_trainer",
}  # fmt: skip
PACKAGE = Path(__file__).resolve().parents[2]
KIBIBYTE = 1024


def main(question_file: str, answer_file: str) -> None:
    question = json.loads(Path(question_file).read_text(encoding="utf-8"))
    _without_dependencies()
    refused = importlib.import_module("shardwright.rehearsal.inside.guard").Refused
    begin = time.perf_counter()
    try:
        answer = _answer(question)
    except refused as error:
        answer = {"refused": {"path": error.path, "message": error.message, "hint": error.hint}}
    except MemoryError:
        answer = {"out_of_memory": True}
    except (Exception, SystemExit) as error:
        short = "can't allocate memory" in str(error) or "Cannot allocate memory" in str(error)
        answer = {"out_of_memory": True} if short else {
            "failed": f"{type(error).__name__}: {error}", "trace": traceback.format_exc(),
        }  # fmt: skip
    answer["seconds"] = time.perf_counter() - begin
    answer["host_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE
    Path(answer_file).write_text(json.dumps(answer), encoding="utf-8")


def _without_dependencies() -> None:
    """Have the folders of this package importable in a trainer's environment, which has none of its dependencies."""
    package = types.ModuleType("shardwright")
    package.__path__ = [str(PACKAGE)]
    sys.modules["shardwright"] = package


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    warnings.filterwarnings("ignore")
    inside = "shardwright.rehearsal.inside"
    os.environ |= question["environment"] | {"TORCHDYNAMO_DISABLE": "0" if question.get("compiled") else "1"}
    guard = importlib.import_module(f"{inside}.guard")
    layer = "" if question.get("on_gpu") else guard.load_guard()
    if question["trainer"] in guard.IMPORTED:
        guard.require(*guard.IMPORTED[question["trainer"]])
    if question.get("on_gpu"):
        runner = importlib.import_module(f"{inside}.{RUNNERS[question['trainer']]}")
        there: dict[str, Any] = importlib.import_module(f"{inside}.real_device").measured(question, runner.rehearse)
        return there
    # The limit is the trainer's: the compiler of the guard, at its first use, has what it needs.
    resource.setrlimit(resource.RLIMIT_DATA, (int(question["limit_bytes"]),) * 2)
    runner = importlib.import_module(f"{inside}.{RUNNERS[question['trainer']]}")
    answer: dict[str, Any] = importlib.import_module(f"{inside}.fake_device").played(question, runner.rehearse)
    return answer | {"layer": layer}


if __name__ == "__main__":
    main(*sys.argv[1:])
