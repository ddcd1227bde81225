"""On a terminal: no line wider than the screen, whatever its width, and colour nowhere; through a pipe everything."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from unittest import mock

import pytest
from tests.cli.running import run, succeeded

from shardwright.search import planner

PLAN = "--model opt-350m --cluster 1x8xA100-SXM-40+2x8xV100-SXM2 --global-batch 64 --seq-len 1024 --precision fp16"
COMMANDS = (
    f"plan {PLAN} --tokens 1B",
    f"plan {PLAN} --tokens 1B --details",
    "shop --model opt-350m --gpu A100-SXM-40 --gpu V100-SXM2 --precision fp16 --tokens 1B --max-gpus 8 --mixes 0",
    "evaluate PLAN",
    "fit llama-2-7b --gpu RTX4090",
    "gpus",
    "models",
    "prices --gpu H100-SXM",
    "gpus H100-SXM",
    "models llama-2-7b",
)
IMPATIENT = (
    "import shardwright.cli.output as output; output.PATIENCE_SECONDS, output.REFRESH_SECONDS = 0.02, 0.01; "
    "from shardwright.cli.app import main; main()"
)
ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("terminal") / "plan.json"
    assert run(["plan", *PLAN.split(), "--out", str(file)]).code == 0
    return file


@pytest.fixture(scope="module")
def searched_once() -> Iterator[None]:
    """A search whose question was asked before has the same answer."""
    search, known = planner._plan, {}

    def recalled(*asked: object) -> object:
        key = repr(asked)
        if key not in known:
            known[key] = search(*asked)
        return known[key]

    with mock.patch.object(planner, "_plan", recalled):
        yield


def on_a_terminal(
    arguments: list[str], columns: int, program: tuple[str, str] = ("-m", "shardwright"), **environment: str
) -> str:
    """Return what a command shows on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with subprocess.Popen(
        [sys.executable, *program, *arguments],
        stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL,
        env={key: value for key, value in os.environ.items() if key != "COLUMNS"} | {"TERM": "xterm"} | environment,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = bytearray()
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # the other side has closed
            pass
        os.close(ours)
        assert process.wait() == 0, shown
    return shown.decode()


@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_wider_than_the_screen(
    command: str, plan: Path, searched_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = command.replace("PLAN", str(plan)).split() if "evaluate" in command else command.split()
    run(arguments)  # what it imports is there before widths are replaced, and none of it keeps one
    for columns in (60, 80, 160):
        for module in [module for name, module in sys.modules.items() if name.startswith("shardwright.cli")]:
            for width in ("terminal_width", "screen_width"):
                if hasattr(module, width):
                    monkeypatch.setattr(module, width, lambda columns=columns: columns)
        done = succeeded(arguments)
        wide = [line for line in done.out.splitlines() if len(line) > columns and "shardwright " not in line]
        assert wide == [], columns


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_screen_s_width_is_taken_and_nothing_is_coloured(columns: int) -> None:
    shown = on_a_terminal(["gpus"], columns, NO_COLOR="1")
    assert ESCAPE.findall(shown) == []
    assert max(map(len, shown.splitlines())) <= columns
    assert shown.count("─\r\n") > (columns < 80)  # the rest of the columns stands below


def test_progress_is_shown_and_wiped_out() -> None:
    shown = on_a_terminal(["plan", *PLAN.split()], 80, ("-c", IMPATIENT))
    assert " s left" in shown or " s …" in shown
    assert shown.rindex("\x1b[K") > shown.rindex("searching")
    quiet = on_a_terminal(["plan", *PLAN.split()], 80, ("-c", IMPATIENT), TERM="dumb")
    assert "searching" not in quiet and ESCAPE.findall(quiet) == []


def test_a_pipe_gets_whole_sources() -> None:
    assert "…" not in run(["gpus"]).out
