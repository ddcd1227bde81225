"""What the command line writes where the world is not ideal: other encodings, closed pipes, full disks, interrupts."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.cli.running import refused, run, succeeded
from tests.signals import interruptible

from shardwright.cli.output import NARROWEST, USUAL_WIDTH, terminal_width, write, write_json

COMMAND = [sys.executable, "-m", "shardwright"]
PLAN = ["plan", "--model", "gpt2", "--cluster", "1x2xA100-SXM-80", "--global-batch", "2", "--seq-len", "256"]
COMMANDS = ["plan", "evaluate", "export", "check", "gpus", "models", "prices"]


def shell(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=120, **options)


def captured(text: str, encoding: str) -> str:
    """Return what `write` leaves on a standard output of some encoding."""
    raw = io.BytesIO()
    with mock.patch.object(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding)):
        write(text)
        return raw.getvalue().decode(encoding)


def test_an_encoding_without_bars_gets_plainer_characters() -> None:
    assert captured("8 × 8 ██▍··", "utf-8") == "8 × 8 ██▍··\n"
    assert captured("8 × 8 ██▍··", "ascii") == "8 x 8 ##+..\n"
    assert captured("8 × 8 ██▍··", "latin-1") == "8 x 8 ##+..\n"
    done = shell(PLAN, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "1 x 2 A100-SXM-80" in done.stdout


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_is_the_same_document_in_every_encoding(encoding: str) -> None:
    document = {"name": "×█", "half": "\ud800"}
    raw = io.BytesIO()
    with mock.patch.object(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding)):
        write_json(document)
        assert json.loads(raw.getvalue()) == document


def test_escape_sequences_in_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    assert captured("\x1b[31mred\x07", "utf-8") == "?[31mred?\n"
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 172, "vocab_size": 512, "_name_or_path": "\x1b[2Jx"}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert "\x1b" not in run(["models", str(path)]).out


def test_a_reader_that_has_gone_is_no_error() -> None:
    process = subprocess.Popen([*COMMAND, "prices"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    message = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert message == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "gpus"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: standard output: cannot be written: No space left")
    assert "Traceback" not in done.stderr


def opened_once_read(pipe: Path, reader: subprocess.Popen[str]) -> int:
    """Return the pipe, opened for writing as soon as the reader has opened it."""
    while True:
        assert reader.poll() is None, "it waits for its input"
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            assert error.errno == errno.ENXIO, "there is no reader yet"
            time.sleep(0.05)


def test_an_interrupt_ends_quietly(tmp_path: Path) -> None:
    pipe = tmp_path / "cluster.yaml"
    os.mkfifo(pipe)  # nobody writes to it, so the command waits
    arguments = ["evaluate", "--megatron-args", str(pipe), "--cluster", "1x8xH100-SXM"]
    with interruptible():
        process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    writer = opened_once_read(pipe, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    os.close(writer)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.parametrize("place", [0, 1, 2])
def test_debug_shows_the_traceback_wherever_it_stands(place: int) -> None:
    arguments = ["gpus", "H1000"]
    arguments.insert(place, "--debug")
    done = shell(arguments)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "H1000" in done.stderr


def test_without_a_command_there_is_help() -> None:
    outcome = succeeded([])
    for command in COMMANDS:
        assert f"\n  {command}" in outcome.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_as_they_are_typed(command: str) -> None:
    lines = run([command, "--help"]).out.splitlines()
    examples = [line for line in lines if line.startswith(f"    shardwright {command}")]
    assert len(examples) >= 2
    assert any("--json" in line for line in lines)


def test_a_mistyped_command_is_suggested() -> None:
    message = refused(run(["plna"]))
    assert message.splitlines() == ["error: No such command 'plna'. Did you mean 'plan'?", "  see `shardwright --help`"]


def test_a_missing_option_is_one_line_and_a_remedy() -> None:
    message = refused(run(["plan", "--model", "gpt2"]))
    assert message.splitlines() == ["error: Missing option '--cluster'.", "  see `shardwright plan --help`"]


def test_output_to_a_file_has_the_usual_width() -> None:
    assert terminal_width() == USUAL_WIDTH
    with (
        mock.patch.object(sys.stdout, "isatty", return_value=True),
        mock.patch("shutil.get_terminal_size", return_value=os.terminal_size((40, 24))),
    ):
        assert terminal_width() == NARROWEST


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["--version"], ["plan"], []])
def test_help_and_mistakes_need_no_heavy_imports(arguments: list[str]) -> None:
    program = (
        "import sys; from shardwright.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit(' '.join(sorted({'numpy', 'rich', 'torch', 'xxhash', 'yaml'} & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_library_is_imported_when_it_is_used() -> None:
    program = (
        "import sys, shardwright\n"
        "before = {'click', 'numpy', 'yaml'} & set(sys.modules)\n"
        "assert not before, before\n"
        "model = shardwright.load_model('gpt2')\n"
        "cluster = shardwright.load_cluster('1x2xA100-SXM-80')\n"
        "ranking = shardwright.plan(model, cluster, shardwright.make_job(global_batch=2, seq_len=256))\n"
        "assert isinstance(ranking.best, shardwright.Plan)\n"
        "assert 'torch' not in sys.modules and 'scipy' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_reports_are_equal_byte_for_byte_but_for_the_seconds_of_the_search() -> None:
    def text(seed: str) -> tuple[str, str]:
        done = shell([*PLAN, "--details"], env={**os.environ, "PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr
        before, search = done.stdout.split("\nSearch: ")
        return before, search.split(" in ")[0] + search[search.index("\nAssumed") :]

    assert text("1") == text("2")
