"""What a launch script would pass, snippet by snippet: bash is the judge."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from shardwright.errors import SpecError
from shardwright.importers.shell.read import read_script
from shardwright.importers.shell.unknown import is_known

SNIPPETS = (Path(__file__).parent / "snippets.sh").read_text(encoding="utf-8").strip().split("\n\n")
JUDGE = """torchrun() { printf '<%s>' "$@"; echo; } >> "$JUDGE_LOG"
export -f torchrun
"""


def passed_by_bash(snippet: str, folder: Path) -> list[str]:
    """Return the arguments of every `torchrun` that a snippet starts."""
    log = folder / "log"
    log.touch()
    subprocess.run(
        ["bash", "-c", JUDGE + snippet],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "JUDGE_LOG": str(log)},
        capture_output=True,
        timeout=10,
        check=False,
    )
    return log.read_text().splitlines()


@pytest.mark.parametrize("snippet", SNIPPETS[1:])
def test_snippets(snippet: str, tmp_path: Path) -> None:
    started = [each.words for each in read_script(snippet, "snippet.sh").started if each.words[0] == "torchrun"]
    found = ["".join(f"<{word}>" for word in words[1:]) or "<>" for words in started]
    assert all(map(is_known, found))
    assert found == passed_by_bash(snippet, tmp_path)


def test_braces_that_never_close_are_looked_at_once() -> None:
    begin = time.perf_counter()
    read_script("torchrun " + "{" * 50_000 + "\n", "snippet.sh")
    assert time.perf_counter() - begin < 10.0  # two minutes, one by one


REFUSED = (
    "echo 'open",
    'echo "open',
    "echo `open",
    "X=$(open",
    "X=(one two",
    "if true; then echo",
    "for i in 1 2; do echo $i",
    "while true; done",
    "if true; then echo; done",
    "case x in a) echo;;",
    "echo (a b)",
    "echo; )",
    "echo | ; echo",
    "&& echo",
    "fi",
    "{ echo; ",
    "}",
    "( echo",
    "echo ${NODES.0}",
    "echo ${}",
)


@pytest.mark.parametrize("script", REFUSED)
def test_what_bash_refuses_is_said_in_its_words(script: str) -> None:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    judged = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    with pytest.raises(SpecError) as caught:
        read_script(script, "snippet.sh")
    (problem,) = caught.value.problems
    assert problem.message.removeprefix("bash refuses it: ") in judged.stderr, judged.stderr
