"""Help has examples for every command, made of options that there are; shells complete commands, options and names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest

from shardwright.cli.app import app
from shardwright.cli.completion import gpus, models, targets
from shardwright.commands import CommandGroup


def commands(found: CommandGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that has no sub-commands, with its words."""
    for name in found.homes:
        each = found.get_command(click.Context(found), name)
        if isinstance(each, CommandGroup):
            yield from commands(each, (*path, name))
        else:
            yield (*path, name), each


COMMANDS = dict(commands(app))


def examples(command: Any, path: tuple[str, ...]) -> list[str]:
    """Return the lines of help that call the command, continued ones joined."""
    text = re.sub(r"\\\n\s*", " ", command.help or "")
    called = re.compile(rf"^\s*(torchrun .* -m )?shardwright {' '.join(path)}( .*)?$")
    return [line.strip() for line in text.splitlines() if called.match(line)]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_examples_whose_options_there_are(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    lines = examples(command, path)
    assert lines, f"{' '.join(path)} has no example"
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for line in lines:
        words = shlex.split(line.split(";")[0].split(" > ")[0].split("   #")[0])
        own = words[words.index(path[-1]) + 1 :]
        assert {word for word in own if re.match(r"-{1,2}[a-z]", word)} <= known, line


def completed(words: str) -> list[str]:
    """Return what bash would offer for the last word."""
    environment = os.environ | {
        "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1), "_SHARDWRIGHT_COMPLETE": "bash_complete",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "shardwright"], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return [line.removeprefix("plain,") for line in done.stdout.split()]


def test_a_shell_completes_commands_options_and_names() -> None:
    assert completed("shardwright sh") == ["shop"]
    assert "--max-gpus" in completed("shardwright shop --max")
    assert completed("shardwright plan --model llama-3.1-7") == ["llama-3.1-70b"]
    assert completed("shardwright export plan.json --to meg") == ["megatron"]


def test_names_are_completed_whatever_their_case() -> None:
    assert "H100-SXM" in gpus("h100") and models("LLAMA-2-70") == ["llama-2-70b"] and targets("perf") == ["perfetto"]
    assert models("no-such") == []
