"""What the command line takes to start, in seconds of processor time: the least of several runs.

    python -m benchmarks.start_up [REPEATS]

`plan` is a small search, told with and without the seconds that the search itself took.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

JOB = ["--model", "llama-3.1-8b", "--cluster", "1x8xH100-SXM", "--global-batch", "64", "--seq-len", "4096"]
PLAN = ["plan", *JOB, "--json"]
COMMANDS = {"--help": ["--help"], "plan --help": ["plan", "--help"], "plan": PLAN}


def measured(words: list[str]) -> tuple[float, str]:
    """Return the processor time of one run of the command line, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "shardwright", *words], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for name, words in COMMANDS.items():
        runs = [measured(words) for _ in range(repeats)]
        seconds = min(seconds for seconds, _ in runs)
        beside = ""
        if name == "plan":
            least = min(seconds - json.loads(text)["search"]["seconds"] for seconds, text in runs)
            beside = f", {least:.2f} s beside its search"
        print(f"{name:12} {seconds:.3f} s{beside}")


if __name__ == "__main__":
    main()
