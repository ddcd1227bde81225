"""What bash passes: runs a script for real, with stand-ins for the programs that it starts, which note their words."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from shardwright.importers.shell.unknown import UNKNOWN, unknowns, variable_of

NOTED = ("torchrun", "deepspeed", "accelerate", "python", "python3")
WRAPPING = ("srun", "mpirun", "nohup", "numactl", "singularity")
SILENT = (
    "scontrol",
    "nvidia-smi",
    "module",
    "conda",
    "wandb",
    "rsync",
    "rdma",
    "hostname",
    "dcgmi",
    "shuf",
    "clear",
    "find",
)
TIME_LIMIT_SECONDS = 20

NOTE = """#!/bin/bash
case "$1 $2" in "-c "*) echo printed-by-a-program; exit 0;; esac
{ printf '%s\\0' "$(basename "$0")" "$@"; printf '\\n\\0'; } >> "$JUDGE_LOG"
"""
WRAP = """#!/bin/bash
while [ $# -gt 0 ]; do
  case "$(basename -- "$1")" in
    torchrun|deepspeed|accelerate|python|python3|bash|sh|srun|mpirun|numactl|singularity) exec "$@";;
    *=*|*) shift;;
  esac
done
"""
SUBMIT = """#!/bin/bash
for last; do :; done
export SLURM_JOB_ID=1
exec bash "$last"
"""
# What of the machine that the script is written for is not there is passed over.
ELSEWHERE = """
source() { if [ -e "$1" ]; then builtin source "$@"; fi; }
cd() { builtin cd "$@" 2> /dev/null || true; }
pushd() { true; }
"""
SAY = """#!/bin/bash
echo printed-by-a-program
"""


def passed_by_bash(
    script: Path, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
) -> list[list[str]]:
    """Return the words of every program of NOTED that the script starts, run in a copy of its folder."""
    work, programs, log = folder / "work", folder / "programs", folder / "log"
    shutil.copytree(script.parent, work)
    programs.mkdir()
    for names, text in ((NOTED, NOTE), (WRAPPING, WRAP), (SILENT, SAY), (("sbatch",), SUBMIT)):
        for name in names:
            (programs / name).write_text(text)
            (programs / name).chmod(stat.S_IRWXU)
    (work / "pretrain_gpt.py").touch()
    log.touch()
    start = folder / "start"
    start.write_text(ELSEWHERE)
    path = f"{programs}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", script.name, *arguments],
        cwd=work,
        env={
            "PATH": path,
            "HOME": str(folder),
            "USER": "user",
            "JUDGE_LOG": str(log),
            "BASH_ENV": str(start),
            **environment,
        },
        capture_output=True,
        timeout=TIME_LIMIT_SECONDS,
        check=False,
    )
    found: list[list[str]] = [[]]
    for word in log.read_bytes().decode().split("\0"):
        if word == "\n":
            found.append([])
        else:
            found[-1].append(word)
    return [words for words in found if len(words) > 1]


def same(read: Sequence[str], passed: Sequence[str]) -> bool:
    """Whether words that were read are those that bash passed: what is not known may be anything, and, where it stands
    alone, any number of words."""
    return re.fullmatch("".join(map(_pattern, read)), "".join(f"{word}\0" for word in passed), re.S) is not None


def _pattern(word: str) -> str:
    if UNKNOWN.fullmatch(word):
        return "(?:[^\0]*\0)*?"
    pieces = UNKNOWN.split(word)
    return "[^\0]*".join(map(re.escape, pieces[::2])) + "\0"


def variables_wanted(words: Sequence[str]) -> dict[str, str]:
    """Return a value for every variable that words hang on, so that bash has one too."""
    parts = [part for word in words for part in unknowns(word)]
    names = [name for part in parts if (name := variable_of(part)) and not name.isdigit()]
    return {name: f"value-of-{name}" for name in names}
