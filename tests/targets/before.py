"""The questions of `varied` to an older commit, through the same parser and the same rules of run time.

    python -m tests.targets.before b766e64

writes before.csv, from which the page has its column of then: that commit is the last before exports were held against
what Megatron-LM and Transformer Engine refuse only when they run.
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.targets.run_megatron import AMD_CAPABILITY, checked
from tests.targets.varied import BEFORE, QUESTIONS

from shardwright.files import write_atomically
from shardwright.spec.catalog.gpus import gpus

ASK = Path(__file__).with_name("ask.py")


def answers_of(commit: str) -> list[dict[str, Any]]:
    """Return what a commit exports for every question."""
    questions = [asdict(question) | {"name": question.name} for question in QUESTIONS]
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit, "src"], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        done = subprocess.run(
            [sys.executable, str(ASK)],
            input=json.dumps(questions),
            env={**os.environ, "PYTHONPATH": f"{folder}/src"},
            capture_output=True,
            text=True,
            check=True,
        )
    return list(json.loads(done.stdout))


def case(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as the check takes it, for the least of its GPUs."""
    found = [gpus()[name] for name in answer["gpus"]]
    least = min(gpu.capability for gpu in found)
    number = AMD_CAPABILITY if least == float("inf") else (int(least), round(least % 1 * 10))
    return answer | {"capability": number, "vendor": found[0].vendor}


def main(commit: str) -> None:
    """Write what became of each question."""
    answers = answers_of(commit)
    found = checked([case(answer) for answer in answers if "refused" not in answer])
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("question", commit))
    for answer in answers:
        result = found.get(answer["name"], {})
        said = "refused" if "refused" in answer else "not accepted" if result.get("error") else ""
        writer.writerow((answer["name"], said or "; ".join(result["broken"]) or "starts"))
    write_atomically(BEFORE, out.getvalue())


if __name__ == "__main__":
    main(sys.argv[1])
