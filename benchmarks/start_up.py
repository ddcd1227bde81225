"""What the command line takes to start, in seconds of processor time: the least of several runs, beside what Python and
the libraries that planning needs take alone; and what a frozen class takes to be made.

    python -m benchmarks.start_up [REPEATS]

`plan` is a small search, told with and without what the search itself took, in processor time too: other programs would
lengthen its seconds.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardwright.records import record

SEARCH = """
import sys, time
from shardwright.search import planner
search, spent = planner.plan, [0.0]
def timed(*given, **asked):
    begin = time.process_time()
    ranking = search(*given, **asked)
    spent[0] += time.process_time() - begin
    return ranking
planner.plan = timed
try:
    from shardwright.__main__ import main
    main()
finally:
    print(spent[0], file=sys.stderr)
"""
JOB = ["--model", "llama-3.1-8b", "--cluster", "1x8xH100-SXM", "--global-batch", "64", "--seq-len", "4096"]
LIBRARIES = "numpy, click"
PROGRAMS = {
    "python": ["-c", ""],
    LIBRARIES: ["-c", "import numpy, click"],
    "--help": ["-m", "shardwright", "--help"],
    "plan --help": ["-m", "shardwright", "plan", "--help"],
    "plan": ["-c", SEARCH, "plan", *JOB, "--json"],
}
CLASSES = 50


def measured(words: list[str]) -> tuple[float, str]:
    """Return the processor time of one run of Python, and what it wrote as errors."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stderr


def making(decorator: Callable[[type[Any]], type[Any]]) -> float:
    """Return the seconds that a class of six fields takes to be made a frozen dataclass."""
    fields = dict.fromkeys(("gpus", "name", "layers", "seconds", "memory", "rule"), "int")
    plain = {"__module__": __name__, "__doc__": "A class.", "__annotations__": fields}
    classes = [type("Stage", (), dict(plain)) for _ in range(CLASSES)]
    begin = time.process_time()
    for cls in classes:
        decorator(cls)
    return (time.process_time() - begin) / CLASSES


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    needed = 0.0
    for name, words in PROGRAMS.items():
        runs = [measured(words) for _ in range(repeats)]
        seconds = min(seconds for seconds, _ in runs)
        needed = seconds if name == LIBRARIES else needed
        beside = ""
        if name == "plan":
            least = min(seconds - float(text.splitlines()[-1]) for seconds, text in runs)
            beside = f", {least:.2f} s beside its search, of which {least - needed:.2f} s are not {LIBRARIES}'s"
        print(f"{name:12} {seconds:.3f} s{beside}")
    frozen = partial(dataclass, frozen=True, slots=True, kw_only=True)
    standard, ours = (min(making(way) for _ in range(repeats)) for way in (frozen, record))
    times = standard / ours
    print(f"a class      {ours * 1e3:.2f} ms, by dataclass {standard * 1e3:.2f} ms: {times:.1f} times as long")


if __name__ == "__main__":
    main()
